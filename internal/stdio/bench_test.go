//go:build linux

package stdio

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkLog is the way of a line into the file, in the reads of a relay.
func BenchmarkLog(b *testing.B) {
	for name, line := range map[string]int{"20B": 20, "100B": 100, "1KiB": 1024, "16KiB": 16384} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			l, err := OpenLog(&LogOptions{Path: filepath.Join(dir, "0.log"), MaxSize: 64 << 20, MaxFiles: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			text := append(bytes.Repeat([]byte("x"), line-1), '\n')
			p := bytes.Repeat(text, 2*readSize/line+2)[:readSize]
			b.SetBytes(readSize)
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Write(Stdout, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRelay is the whole way, from a process's pipe into the file.
func BenchmarkRelay(b *testing.B) {
	l, err := OpenLog(&LogOptions{Path: filepath.Join(b.TempDir(), "0.log"), MaxSize: 64 << 20, MaxFiles: 1})
	if err != nil {
		b.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	r := NewRelay(out, nil, l)
	p := bytes.Repeat([]byte("a line of a hundred bytes, as a service would write it: level=info msg=\"and so on and so forth\" x=1\n"), 300)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Write(p); err != nil {
			b.Fatal(err)
		}
	}
	w.Close()
	<-r.Done()
	if l.Stats().Dropped > 0 {
		b.Error("lines were dropped")
	}
}
