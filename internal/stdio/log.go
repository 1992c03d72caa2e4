package stdio

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
)

const (
	defaultMaxLine  = 16384
	defaultMaxFiles = 5
	// stampFormat is RFC3339Nano in UTC with all nine digits, so that stamps
	// sort as text.
	stampFormat = "2006-01-02T15:04:05.000000000Z"
	// batchSize holds one read of ordinary lines with their headers.
	batchSize = 64 << 10
)

// LogOptions say where and how a container's log is written.
type LogOptions struct {
	// Path of the log file. Empty discards everything.
	Path string
	// MaxLine is the longest content of one record in bytes; longer lines are
	// split. 0 is 16384.
	MaxLine int
	// MaxSize in bytes is where the log rotates by itself: a file is at most
	// this long, or one batch (64 KiB) where that is longer. 0 leaves rotation
	// to Reopen.
	MaxSize int64
	// MaxFiles is how many files own rotation keeps, the one in use included.
	// 0 is 5.
	MaxFiles int
	// Rate is how many bytes a second are logged; what a process writes beyond
	// is dropped line by line and one marker tells how much. 0 is no limit.
	Rate int64
}

// LogStats counts since OpenLog. Lines and Dropped count records: a line
// longer than MaxLine is several. Bytes are content, without headers.
type LogStats struct {
	Lines, Bytes, Dropped, Reopens int64
}

// Log is a Sink that writes the CRI log file, one record a line:
//
//	<time> <stdout|stderr> <P|F> <content>\n
//
// F ends a line. P says that the line goes on, or that the stream ended in it.
// Content is what the process wrote, byte for byte, a carriage return included.
//
// Write never fails for a file system that fails and never waits for it to
// heal: what cannot be written is counted, and once writing works again one
// marker record says how much is missing. The file ends at a record's end at
// any time.
type Log struct {
	opts LogOptions

	lines, bytes, dropped, reopens atomic.Int64

	// mu is the order of the records. It is held across the write to the file,
	// because that order is what it protects; nothing but Write, Reopen and
	// Close takes it.
	mu     sync.Mutex
	file   *os.File
	closed bool
	size   int64 // of file
	rotate int64 // the size at which own rotation comes next
	torn   bool  // the file ends inside a record that could not be cut off
	half   [2]half
	window time.Time // start of the rate limit's current second
	spent  int64     // bytes logged in it
}

// half is the state of one stream.
type half struct {
	// pending is the start of a line whose end has not come: at most MaxLine.
	pending []byte
	// skip drops the rest of the current line, of which a part was dropped.
	skip bool
	lost loss
}

// OpenLog opens the log, creating the file (0640) and its folder (0755). A
// symbolic link or anything that is no regular file is InvalidArgument.
func OpenLog(o *LogOptions) (*Log, error) {
	l := &Log{opts: *o}
	if l.opts.MaxLine <= 0 {
		l.opts.MaxLine = defaultMaxLine
	}
	if l.opts.MaxFiles <= 0 {
		l.opts.MaxFiles = defaultMaxFiles
	}
	l.rotate = l.opts.MaxSize
	if l.opts.Path == "" {
		return l, nil
	}
	f, size, err := openLogFile(l.opts.Path)
	if err != nil {
		return nil, err
	}
	l.file, l.size = f, size
	return l, nil
}

// Stats never waits for the disk.
func (l *Log) Stats() LogStats {
	return LogStats{
		Lines:   l.lines.Load(),
		Bytes:   l.bytes.Load(),
		Dropped: l.dropped.Load(),
		Reopens: l.reopens.Load(),
	}
}

// Write logs what a process wrote: any piece of its stream. The only error is
// FailedPrecondition after Close.
func (l *Log) Write(s Stream, p []byte) error {
	if l.opts.Path == "" {
		l.bytes.Add(int64(len(p)))
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("write to log %s: closed: %w", l.opts.Path, errdefs.ErrFailedPrecondition)
	}
	b := newBatch(s)
	h := &l.half[s]
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		line := p
		if end >= 0 {
			line = p[:end]
		}
		for len(h.pending)+len(line) > l.opts.MaxLine {
			n := l.opts.MaxLine - len(h.pending)
			l.emit(b, 'P', line[:n])
			line = line[n:]
		}
		if end < 0 {
			h.pending = append(h.pending, line...)
			break
		}
		l.emit(b, 'F', line)
		p = p[end+1:]
	}
	l.flush(b)
	b.free()
	return nil
}

// endStream writes what the stream left without a newline at its end.
func (l *Log) endStream(s Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.file != nil {
		l.finish(s)
	}
}

// finish writes the stream's pending part and its marker. mu is held.
func (l *Log) finish(s Stream) {
	h := &l.half[s]
	b := newBatch(s)
	if len(h.pending) > 0 {
		l.emit(b, 'P', nil)
	}
	if h.lost.records > 0 {
		l.mark(b, h)
	}
	l.flush(b)
	b.free()
}

// batch is the records of one Write, built in one buffer for one system call.
type batch struct {
	s    Stream
	now  time.Time
	head [64]byte
	n    int // length of head
	out  []byte
	// records and content of out, its marker not counted.
	records, content int64
	last             byte // tag of the latest record
	// marker is where the marker at the start of out ends, 0 without one;
	// marked is the loss it tells of.
	marker int
	marked loss
}

var batchPool = sync.Pool{New: func() any {
	return &batch{out: make([]byte, 0, batchSize)}
}}

func newBatch(s Stream) *batch {
	b := batchPool.Get().(*batch)
	b.s, b.now = s, time.Now()
	h := b.now.UTC().AppendFormat(b.head[:0], stampFormat)
	h = append(h, ' ')
	h = append(h, s.String()...)
	h = append(h, " F "...)
	b.n = len(h)
	return b
}

func (b *batch) free() {
	if cap(b.out) > 2*batchSize {
		return // one enormous MaxLine must not stay in memory
	}
	*b = batch{out: b.out[:0]}
	batchPool.Put(b)
}

// add appends one record of two parts.
func (b *batch) add(tag byte, first, second []byte) {
	b.head[b.n-2] = tag
	b.out = append(b.out, b.head[:b.n]...)
	b.out = append(b.out, first...)
	b.out = append(b.out, second...)
	b.out = append(b.out, '\n')
}

// emit makes one record of the pending part and line, or drops it. mu is held.
func (l *Log) emit(b *batch, tag byte, line []byte) {
	h := &l.half[b.s]
	content := len(h.pending) + len(line)
	if h.skip || !l.admit(b.now, content+1) {
		if !h.skip {
			h.lost.reason = rateReason
		}
		h.skip = tag == 'P'
		h.lost.add(1, int64(content))
		l.dropped.Add(1)
	} else {
		if h.lost.records > 0 {
			l.mark(b, h)
		}
		if len(b.out)+b.n+content+1 > cap(b.out) {
			l.flush(b)
		}
		b.add(tag, h.pending, line)
		b.records++
		b.content += int64(content)
		b.last = tag
	}
	h.pending = h.pending[:0]
	if cap(h.pending) > 4096 {
		h.pending = nil // an idle log holds no line buffer
	}
}

// flush writes the batch, at the size limit into a new file. mu is held.
func (l *Log) flush(b *batch) {
	if len(b.out) == 0 {
		return
	}
	l.rotateFor(len(b.out))
	if l.torn {
		if _, err := l.file.Write([]byte{'\n'}); err != nil {
			l.failed(b, 0, err)
			return
		}
		l.torn = false
		l.size++
	}
	n, err := l.file.Write(b.out)
	if err != nil {
		l.failed(b, n, err)
		return
	}
	l.size += int64(n)
	l.lines.Add(b.records)
	l.bytes.Add(b.content)
	b.reset()
}

func (b *batch) reset() {
	b.out = b.out[:0]
	b.records, b.content, b.marker = 0, 0, 0
}
