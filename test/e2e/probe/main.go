// Probe is the program of the end-to-end suite's image for what a shell cannot
// do: numbered lines at full speed, memory that is really used, connections.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fail("usage: probe lines|eat|echo|dial|signals ...")
	}
	switch arg := os.Args[2:]; os.Args[1] {
	case "lines":
		lines(arg)
	case "eat":
		eat(number(arg[0]))
	case "echo":
		echo(arg[0])
	case "dial":
		dial(arg[0], arg[1])
	case "signals":
		signals()
	default:
		fail("unknown word " + os.Args[1])
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "probe:", why)
	os.Exit(1)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fail(err.Error())
	}
	return n
}

// lines COUNT [PAUSE] writes "line N" with N from 0, to stdout and stderr in
// turn when there is a third word.
func lines(arg []string) {
	count, pause := number(arg[0]), time.Duration(0)
	if len(arg) > 1 {
		d, err := time.ParseDuration(arg[1])
		if err != nil {
			fail(err.Error())
		}
		pause = d
	}
	out := []*os.File{os.Stdout}
	if len(arg) > 2 {
		out = append(out, os.Stderr)
	}
	if pause == 0 && len(out) == 1 {
		w := bufio.NewWriterSize(os.Stdout, 32<<10)
		for i := range count {
			fmt.Fprintln(w, "line", i)
		}
		w.Flush()
		return
	}
	for i := range count {
		fmt.Fprintln(out[i%len(out)], "line", i)
		time.Sleep(pause)
	}
}

// eat MIB uses that much memory, and keeps it.
func eat(mib int) {
	var held [][]byte
	for range mib {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	fmt.Println("ate", len(held))
	for {
		time.Sleep(time.Hour)
	}
}

// echo ADDRESS answers each connection with what it says, and ends its half when
// the client ended its own.
func echo(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		fail(err.Error())
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			fail(err.Error())
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// dial ADDRESS TEXT says text there, and prints the answer.
func dial(address, text string) {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		fail(err.Error())
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprint(c, text)
	c.(*net.TCPConn).CloseWrite()
	b, err := io.ReadAll(c)
	if err != nil {
		fail(err.Error())
	}
	fmt.Print(string(b))
}

// signals prints each signal that may be caught; it ends with SIGKILL only.
func signals() {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch)
	fmt.Println("ready")
	for s := range ch {
		if s == syscall.SIGURG || s == syscall.SIGCHLD {
			continue // Go's own, and nobody's
		}
		fmt.Println("got", strings.ToUpper(s.String()), int(s.(syscall.Signal)))
	}
}
