package stream

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// ticketLife is longer than the library keeps its tokens (a minute).
const ticketLife = 2 * time.Minute

// ticket is a request between its URL and its session. The library passes one
// string of the request on; what else a session must know travels here: which
// streams were asked for (over WebSocket the library hands out all of them), and
// the context that ends when the client's connection does (port-forward gets
// none from the library).
type ticket struct {
	id                    string // of the container or pod
	stdin, stdout, stderr bool
	replay                int // of an attach: it begins with so many lines of the log

	key, token string
	born       time.Time
	ctx        context.Context // of the connection; nil before it came
}

// tickets are those that are not used up.
type tickets struct {
	mu      sync.Mutex
	next    int64
	byKey   map[string]*ticket // the key is what the library passes on
	byToken map[string]*ticket // the token is in the URL
}

func newTickets() *tickets {
	return &tickets{byKey: map[string]*ticket{}, byToken: map[string]*ticket{}}
}

// issue keeps t, and forgets those whose token nobody used in time.
func (ts *tickets) issue(t ticket) (key string, kept *ticket) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	now := time.Now()
	for k, old := range ts.byKey {
		if old.ctx == nil && now.Sub(old.born) > ticketLife {
			delete(ts.byKey, k)
			delete(ts.byToken, old.token)
		}
	}
	ts.next++
	t.key, t.born = strconv.FormatInt(ts.next, 10), now
	ts.byKey[t.key] = &t
	return t.key, &t
}

// name binds t to the token in a URL.
func (ts *tickets) name(t *ticket, url string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t.token = path.Base(url)
	ts.byToken[t.token] = t
}

func (ts *tickets) drop(key string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.byKey, key)
}

// replayKey is what a client adds to the URL of an attach, ?replay=20, to see
// that many of the log's last lines first.
const replayKey = "replay"

// open binds the ticket that a request's URL names to its connection; what it
// returns ends the ticket. Whether the token is good is the library's to say.
func (ts *tickets) open(r *http.Request) func() {
	token := path.Base(r.URL.Path)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t, ok := ts.byToken[token]
	if !ok {
		return func() {}
	}
	delete(ts.byToken, token)
	t.ctx = r.Context()
	// What is no number asks for nothing.
	t.replay, _ = strconv.Atoi(r.URL.Query().Get(replayKey))
	return func() { ts.drop(t.key) }
}

// get finds the ticket of a session under way.
func (ts *tickets) get(key string) (*ticket, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t, ok := ts.byKey[key]
	if !ok || t.ctx == nil {
		return nil, fmt.Errorf("streaming session %s: %w", key, errdefs.ErrNotFound)
	}
	return t, nil
}

func (ts *tickets) len() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.byKey)
}
