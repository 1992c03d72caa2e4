// Hello is what the demo's image holds: a static program that logs numbered
// lines, so that a lost one shows, and answers a few questions when it is exec'd.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// interval is the time between two lines.
const interval = 250 * time.Millisecond

func main() {
	if len(os.Args) > 1 {
		answer(os.Args[1])
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	host, _ := os.Hostname()
	fmt.Printf("hello from %s, process %d\n", host, os.Getpid())
	for n := 1; ; n++ {
		select {
		case s := <-stop:
			fmt.Printf("goodbye (%v)\n", s)
			return
		case <-time.After(interval):
			fmt.Printf("line %d\n", n)
		}
	}
}

func answer(question string) {
	switch question {
	case "id":
		fmt.Printf("uid=%d gid=%d pid=%d\n", os.Getuid(), os.Getgid(), os.Getpid())
	case "address":
		as, err := addresses()
		if err != nil {
			fmt.Fprintln(os.Stderr, "hello:", err)
			os.Exit(1)
		}
		fmt.Println(as)
	case "mounts":
		b, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			fmt.Fprintln(os.Stderr, "hello:", err)
			os.Exit(1)
		}
		os.Stdout.Write(b)
	default:
		fmt.Fprintf(os.Stderr, "hello: unknown question %q; ask address, id or mounts\n", question)
		os.Exit(2)
	}
}

// addresses are those of this network namespace, without loopback and link-local ones.
func addresses() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	var out string
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			out += " " + n.IP.String()
		}
	}
	if out == "" {
		return "", fmt.Errorf("no address")
	}
	return out[1:], nil
}
