package stdio

// reader reads an Output into pooled buffers. Where the platform can tell that
// data is there, it holds no buffer while it waits.
type reader struct {
	n    int // bytes of the latest buffer
	out  Output
	lazy *lazyReader
	// small waits where readiness cannot be told, so that an idle reader costs
	// this much and not a whole buffer.
	small []byte
	full  bool // the latest read filled its buffer: more is there
}

const smallRead = 2048

func newReader(out Output) *reader {
	r := &reader{out: out}
	if r.lazy = newLazyReader(out); r.lazy == nil {
		r.small = make([]byte, smallRead)
	}
	return r
}

// next waits for data. The caller returns the buffer, of which n bytes are
// data, to readPool; it is nil when there was none. Data and an error can come
// together.
func (r *reader) next() (*[]byte, error) {
	r.n = 0
	if r.lazy != nil {
		buf, n, err := r.lazy.next()
		r.n = n
		return buf, err
	}
	if r.full {
		buf := readPool.Get().(*[]byte)
		n, err := r.out.Read(*buf)
		r.full = n == len(*buf)
		return r.got(buf, n, err)
	}
	n, err := r.out.Read(r.small)
	r.full = n == len(r.small)
	if n == 0 {
		return nil, err
	}
	buf := readPool.Get().(*[]byte)
	return r.got(buf, copy(*buf, r.small[:n]), err)
}

func (r *reader) got(buf *[]byte, n int, err error) (*[]byte, error) {
	if n <= 0 {
		readPool.Put(buf)
		return nil, err
	}
	r.n = n
	return buf, err
}
