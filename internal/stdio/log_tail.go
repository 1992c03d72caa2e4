package stdio

import (
	"bytes"
	"io"
	"os"
)

// tailMax bounds what Tail reads of the file, and with it what a client that
// has just come must take at once.
const tailMax = 256 << 10

// Tail gives out the last n lines of the log as the process wrote them, without
// their headers: as many of them as are in the latest 256 KiB of the file in
// use, and what has been written of the next line. A file that was renamed and
// not yet opened anew has none. Nothing is logged meanwhile.
func (l *Log) Tail(n int, out func(Stream, []byte)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n <= 0 || l.file == nil || l.closed {
		return nil
	}
	b, err := l.readTail()
	if err != nil {
		return err
	}
	for _, r := range lastRecords(b, n) {
		out(r.s, r.content)
	}
	for s, h := range l.half {
		if len(h.pending) > 0 {
			out(Stream(s), h.pending)
		}
	}
	return nil
}

// readTail reads the end of the file, from a record's start on. mu is held.
func (l *Log) readTail() ([]byte, error) {
	f, err := os.Open(l.opts.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !sameFile(l.file, f) {
		return nil, nil
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	from := max(0, end-tailMax)
	b := make([]byte, end-from)
	if _, err := f.ReadAt(b, from); err != nil {
		return nil, err
	}
	if from > 0 {
		_, b, _ = bytes.Cut(b, []byte{'\n'})
	}
	return b, nil
}

type logRecord struct {
	s       Stream
	full    bool
	content []byte // with the newline that ends a full line
}

// lastRecords are the records of the last n lines of b, in order.
func lastRecords(b []byte, n int) []logRecord {
	var all []logRecord
	for line := range bytes.Lines(b) {
		if r, ok := parseRecord(line); ok {
			all = append(all, r)
		}
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].full {
			if n == 0 {
				return all[i+1:]
			}
			n--
		}
	}
	return all
}

// parseRecord reads "<time> <stream> <tag> <content>\n".
func parseRecord(line []byte) (logRecord, bool) {
	f := bytes.SplitN(line, []byte{' '}, 4)
	if len(f) < 4 || len(f[2]) != 1 || !bytes.HasSuffix(f[3], []byte{'\n'}) {
		return logRecord{}, false // it is not ours
	}
	r := logRecord{full: f[2][0] == 'F', content: f[3]}
	if string(f[1]) == Stderr.String() {
		r.s = Stderr
	}
	if !r.full {
		r.content = f[3][:len(f[3])-1]
	}
	return r, true
}
