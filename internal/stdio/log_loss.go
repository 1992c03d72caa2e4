package stdio

import (
	"bytes"
	"errors"
	"strconv"
	"syscall"
	"time"
)

const rateReason = "over the rate limit"

// loss is what of a stream is missing in the log since its last marker.
type loss struct {
	records, bytes int64
	reason         string
}

func (o *loss) add(records, bytes int64) {
	o.records += records
	o.bytes += bytes
}

// admit says whether content bytes fit into the rate limit. The limit counts
// in whole seconds, so that a stream that stays above it gets one marker a
// second. A record always fits into an untouched second. mu is held.
func (l *Log) admit(now time.Time, content int) bool {
	if l.opts.Rate <= 0 {
		return true
	}
	if now.Sub(l.window) >= time.Second {
		l.window, l.spent = now, 0
	}
	if l.spent > 0 && l.spent+int64(content) > l.opts.Rate {
		return false
	}
	l.spent += int64(content)
	return true
}

// mark puts the record in that tells of the stream's loss. It is on the stream
// that lost, with tag F: where the loss began inside a line, it ends that line.
// mu is held.
func (l *Log) mark(b *batch, h *half) {
	// Only one marker fits the account of a batch.
	l.flush(b)
	if h.lost.records == 0 {
		return
	}
	text := make([]byte, 0, 128)
	text = append(text, "[berth: "...)
	text = strconv.AppendInt(text, h.lost.records, 10)
	text = append(text, " lines, "...)
	text = strconv.AppendInt(text, h.lost.bytes, 10)
	text = append(text, " bytes not logged: "...)
	text = append(text, h.lost.reason...)
	text = append(text, ']')
	b.add('F', text, nil)
	b.marker, b.marked = len(b.out), h.lost
	h.lost = loss{}
}

// failed accounts for a batch of which n bytes were written, and cuts the file
// back to the end of its last whole record. mu is held.
func (l *Log) failed(b *batch, n int, err error) {
	keep := bytes.LastIndexByte(b.out[:n], '\n') + 1
	if b.marker > 0 {
		keep = 0 // it is not over: one marker will tell of all of it
	}
	l.size += int64(keep)
	if n > keep && !l.cutTail(int64(n-keep)) {
		l.torn = true
		l.size += int64(n - keep)
	}
	h := &l.half[b.s]
	lost := int64(bytes.Count(b.out[keep:], []byte{'\n'}))
	size := int64(len(b.out) - keep)
	if b.marker > 0 {
		h.lost.add(b.marked.records, b.marked.bytes)
		lost--
		size -= int64(b.marker)
	}
	content := size - lost*int64(b.n+1)
	h.lost.add(lost, content)
	h.lost.reason = reason(err)
	if lost > 0 && b.last == 'P' {
		h.skip = true
	}
	l.dropped.Add(lost)
	l.lines.Add(b.records - lost)
	l.bytes.Add(b.content - content)
	b.reset()
}

// cutTail removes the last n bytes of the file. Nobody else appends to it.
func (l *Log) cutTail(n int64) bool {
	st, err := l.file.Stat()
	if err != nil {
		return false
	}
	return l.file.Truncate(st.Size()-n) == nil
}

// reason is the error without the path, which is not a container's business.
func reason(err error) string {
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		return no.Error()
	}
	return err.Error()
}
