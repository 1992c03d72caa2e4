package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

// fakeOutput is a stream that ends when it is told to. It blocks on channels
// only, so that time can be simulated.
type fakeOutput struct {
	end  chan struct{}
	cut  chan struct{}
	once [2]sync.Once
}

func newOutput() *fakeOutput {
	return &fakeOutput{end: make(chan struct{}), cut: make(chan struct{})}
}

func (o *fakeOutput) Read([]byte) (int, error) {
	select {
	case <-o.end:
		return 0, errors.New("ended")
	case <-o.cut:
		return 0, os.ErrDeadlineExceeded
	}
}

func (o *fakeOutput) finish() { o.once[0].Do(func() { close(o.end) }) }

func (o *fakeOutput) SetReadDeadline(time.Time) error {
	o.once[1].Do(func() { close(o.cut) })
	return nil
}
func (o *fakeOutput) Close() error { return o.SetReadDeadline(time.Time{}) }

// fakeHost is a host whose processes do what a test says.
type fakeHost struct {
	mu              sync.Mutex
	procs           map[string]*fakeProc
	create          error
	made            func(*fakeProc) // changes a new process
	gate            chan struct{}   // when set, Exec waits for it
	creates, closes int
}

func (h *fakeHost) add(id string, s host.StreamSpec) *fakeProc {
	p := &fakeProc{id: id, pid: 100 + len(h.procs), done: make(chan struct{})}
	if h.made != nil {
		h.made(p)
	}
	h.procs[id] = p
	return p
}

func (h *fakeHost) Create(_ context.Context, s *host.CreateSpec) (host.Process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.creates++
	if h.create != nil {
		return nil, h.create
	}
	return h.add(s.ID, s.Streams), nil
}

func (h *fakeHost) Exec(_ context.Context, s *host.ExecSpec) (host.Process, error) {
	if h.gate != nil {
		<-h.gate
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.add(s.ID, s.Streams), nil
}

func (h *fakeHost) proc(id string) *fakeProc {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.procs[id]
}

func (h *fakeHost) Update(context.Context, string, *specs.LinuxResources) error { return nil }
func (h *fakeHost) Pause(context.Context, string) error                         { return nil }
func (h *fakeHost) Resume(context.Context, string) error                        { return nil }
func (h *fakeHost) Pids(context.Context, string) ([]int, error)                 { return []int{1}, nil }
func (h *fakeHost) Clean(context.Context, string, string) error                 { return nil }
func (h *fakeHost) Close(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closes++
	return nil
}

type fakeProc struct {
	id     string
	pid    int
	done   chan struct{}
	stdout *fakeOutput
	onKill func(p *fakeProc, ctx context.Context) error // nil: dies with 137

	mu       sync.Mutex
	exit     *host.Exit
	signals  []int
	kills    int
	deletes  int
	notFound bool  // Signal and Kill say that it is gone
	startErr error // of Start
	delErr   error // of Delete
}

func (p *fakeProc) Pid() int { return p.pid }
func (p *fakeProc) Streams() *host.Streams {
	s := &host.Streams{}
	if p.stdout != nil {
		s.Stdout = p.stdout
	}
	return s
}
func (p *fakeProc) Start(context.Context) error { return p.startErr }
func (p *fakeProc) Resize(uint16, uint16) error { return nil }
func (p *fakeProc) Done() <-chan struct{}       { return p.done }
func (p *fakeProc) Exit() *host.Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

func (p *fakeProc) Signal(_ context.Context, sig int, _ bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.signals = append(p.signals, sig)
	if p.notFound || p.exit != nil {
		return fmt.Errorf("no such process: %w", errdefs.ErrNotFound)
	}
	return nil
}

func (p *fakeProc) Kill(ctx context.Context) error {
	p.mu.Lock()
	p.kills++
	gone := p.notFound
	p.mu.Unlock()
	if p.onKill != nil {
		return p.onKill(p, ctx)
	}
	if gone {
		return errdefs.ErrNotFound
	}
	p.end(host.Exit{Code: 137, Signal: 9})
	return nil
}

func (p *fakeProc) Delete(context.Context) error {
	p.mu.Lock()
	p.deletes++
	err := p.delErr
	p.mu.Unlock()
	if err == nil {
		p.end(host.Exit{Code: 137, Signal: 9})
	}
	return err
}

// end ends the process, unless it has ended.
func (p *fakeProc) end(e host.Exit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil {
		return
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	p.exit = &e
	close(p.done)
}

func (p *fakeProc) got() (signals []int, kills, deletes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.signals), p.kills, p.deletes
}

type fakePlatform struct {
	host   *fakeHost
	holder *fakeHolder
}

func (p *fakePlatform) Host(*HostOptions) (host.Host, error)               { return p.host, nil }
func (p *fakePlatform) Mount(context.Context, []Mount, string) error       { return nil }
func (p *fakePlatform) Unmount(context.Context, string) error              { return nil }
func (p *fakePlatform) Hold(context.Context, *HoldRequest) (Holder, error) { return p.holder, nil }
func (p *fakePlatform) OOMScore(int) error                                 { return nil }
func (p *fakePlatform) Stuck(int) string                                   { return "state D" }

type fakeHolder struct{ done chan struct{} }

func (h *fakeHolder) Pid() int                    { return 7 }
func (h *fakeHolder) Done() <-chan struct{}       { return h.done }
func (h *fakeHolder) Close(context.Context) error { return nil }

// events collects what a stock containerd would hear.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) Add(topic string, m proto.Message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	line := topic
	f := m.ProtoReflect().Descriptor().Fields()
	if d := f.ByName("id"); d != nil {
		line += " " + m.ProtoReflect().Get(d).String()
	} else if d := f.ByName("exec_id"); d != nil {
		line += " " + m.ProtoReflect().Get(d).String()
	}
	e.all = append(e.all, line)
}

func (e *events) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

// bench is a core with its fakes.
type bench struct {
	*Core
	t      *testing.T
	host   *fakeHost
	holder *fakeHolder
	events *events
	exits  string
}

func newBench(t *testing.T) *bench {
	b := &bench{
		t: t, host: &fakeHost{procs: map[string]*fakeProc{}}, holder: &fakeHolder{make(chan struct{})},
		events: &events{}, exits: filepath.Join(t.TempDir(), "exits"),
	}
	b.Core = New(&Config{
		ID: "pod", Namespace: "ns", Platform: &fakePlatform{b.host, b.holder}, Events: b.events,
	})
	return b
}

// up brings the sandbox up.
func (b *bench) up(hold bool) {
	b.t.Helper()
	s := &SandboxSpec{ID: "pod", ExitDir: b.exits}
	if hold {
		s.Hold = &HoldRequest{}
	}
	if err := b.CreateSandbox(s); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.StartSandbox(b.t.Context(), "pod"); err != nil {
		b.t.Fatal(err)
	}
}

// spec describes a container. A private one has a pid namespace of its own.
func (b *bench) spec(id string, private bool) *TaskSpec {
	b.t.Helper()
	dir := filepath.Join(b.t.TempDir(), id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	config := `{"linux":{"namespaces":[{"type":"pid","path":"/x"}]}}`
	if private {
		config = `{"linux":{"namespaces":[{"type":"pid"}]}}`
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return &TaskSpec{ID: id, Bundle: dir}
}

func (b *bench) run(id string, private bool) *fakeProc {
	b.t.Helper()
	if _, err := b.Run(b.t.Context(), b.spec(id, private)); err != nil {
		b.t.Fatal(err)
	}
	return b.host.proc(id)
}

// stock creates and starts a stock task.
func (b *bench) stock(id string, private bool) *fakeProc {
	b.t.Helper()
	s := b.spec(id, private)
	s.Stock = &StockSpec{}
	if _, err := b.Create(b.t.Context(), s); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.Start(b.t.Context(), id, ""); err != nil {
		b.t.Fatal(err)
	}
	return b.host.proc(id)
}

func (b *bench) state(id string) Status {
	b.t.Helper()
	s, err := b.Task(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return *s
}

// close ends the core, so that nothing of it outlives the test.
func (b *bench) close() { b.Shutdown(true) }
