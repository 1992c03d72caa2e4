// Writer is what containers of the stream tests run: it writes numbered lines,
// and says how long it was held up. It needs no image: the tests mount it.
//
//	writer lines COUNT          a write each, as fast as it can
//	writer rate COUNT SECOND    so many a second, in a write each 10 ms
//	writer bytes COUNT          zeros, in blocks of 64 KiB
//
// The last it writes is "stalled N", on stderr: the longest that one write took,
// in microseconds.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

var longest time.Duration

func main() {
	if len(os.Args) < 3 {
		fail("usage: writer lines|rate|bytes COUNT")
	}
	count := number(os.Args[2])
	switch os.Args[1] {
	case "lines":
		for i := range count {
			write(fmt.Appendf(nil, "line %d\n", i))
		}
	case "rate":
		rate(count, number(os.Args[3]))
	case "bytes":
		p := make([]byte, 64<<10)
		for n := 0; n < count; n += len(p) {
			write(p[:min(len(p), count-n)])
		}
	}
	fmt.Fprintln(os.Stderr, "stalled", longest.Microseconds())
}

func write(p []byte) {
	begin := time.Now()
	if _, err := os.Stdout.Write(p); err != nil {
		fail(err.Error())
	}
	longest = max(longest, time.Since(begin))
}

func rate(count, second int) {
	begin := time.Now()
	var p []byte
	for i := 0; i < count; {
		due := min(count, int(time.Since(begin).Seconds()*float64(second)))
		p = p[:0]
		for ; i < due && len(p) < 60<<10; i++ {
			p = fmt.Appendf(p, "line %d\n", i)
		}
		if len(p) > 0 {
			write(p)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fail(err.Error())
	}
	return n
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "writer:", why)
	os.Exit(1)
}
