package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"
)

// lastLine ends every container's output.
const lastLine = "this is the end"

// write is what runs in a container: write blocks|lines BYTES LINE, or write
// stamps COUNT. It waits for /bench/go first.
func write(arg []string) {
	for {
		if _, err := os.Stat("/bench/go-" + arg[len(arg)-1]); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			log.Fatal(err)
		}
		return n
	}
	if arg[0] == "stamps" {
		stamps(int(number(arg[1])))
	} else {
		bulk(arg[0] == "blocks", number(arg[1]), int(number(arg[2])))
	}
	fmt.Println(lastLine)
}

func bulk(blocks bool, total int64, line int) {
	p := append(bytes.Repeat([]byte{'x'}, line-1), '\n')
	if blocks {
		p = bytes.Repeat(p, (64<<10)/line)
	}
	for n := int64(0); n < total; n += int64(len(p)) {
		if _, err := os.Stdout.Write(p); err != nil {
			log.Fatal(err)
		}
	}
}

// stamps writes lines that say when they were written.
func stamps(count int) {
	for range count {
		time.Sleep(5 * time.Millisecond)
		fmt.Printf("at %d %s\n", time.Now().UnixNano(), strings.Repeat("x", 80))
	}
}
