// Hello is what the demo's image holds: a static program that logs a line a
// second, and answers a few questions when it is exec'd.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		answer(os.Args[1])
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	start := time.Now()
	host, _ := os.Hostname()
	fmt.Printf("hello from %s, process %d\n", host, os.Getpid())
	for {
		select {
		case s := <-stop:
			fmt.Printf("goodbye (%v)\n", s)
			return
		case <-time.After(time.Second):
			fmt.Printf("running for %v\n", time.Since(start).Round(time.Second))
		}
	}
}

func answer(question string) {
	switch question {
	case "id":
		fmt.Printf("uid=%d gid=%d pid=%d\n", os.Getuid(), os.Getgid(), os.Getpid())
	case "mounts":
		b, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Stdout.Write(b)
	default:
		fmt.Fprintf(os.Stderr, "hello: unknown question %q; ask id or mounts\n", question)
		os.Exit(2)
	}
}
