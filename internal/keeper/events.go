package keeper

import "sync"

// eventBuffer is how far a subscriber may fall behind before it is cut.
const eventBuffer = 1000

// events hands events to subscribers and never waits for one.
type events struct {
	// mu guards the fields below; sends under it never block.
	mu     sync.Mutex
	subs   map[chan *Event]struct{}
	closed bool
}

func newEvents() *events { return &events{subs: map[chan *Event]struct{}{}} }

// Subscribe delivers events from now on, until cancel is called or the
// subscriber falls eventBuffer events behind; then the channel is closed.
func (k *Keeper) Subscribe() (<-chan *Event, func()) {
	e := k.events
	ch := make(chan *Event, eventBuffer)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		close(ch)
		return ch, func() {}
	}
	e.subs[ch] = struct{}{}
	return ch, func() { e.drop(ch) }
}

func (e *events) drop(ch chan *Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.subs[ch]; ok {
		delete(e.subs, ch)
		close(ch)
	}
}

func (e *events) publish(ev *Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ch := range e.subs {
		select {
		case ch <- ev:
		default:
			delete(e.subs, ch)
			close(ch)
		}
	}
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for ch := range e.subs {
		delete(e.subs, ch)
		close(ch)
	}
}
