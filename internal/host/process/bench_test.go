package process

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/host"
)

func BenchmarkLife(b *testing.B) {
	h, err := New(&Options{Runtime: runcPath, Root: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	id, dir := bundle(b, []string{"true"})
	for b.Loop() {
		p, err := h.Create(b.Context(), &host.CreateSpec{ID: id, Bundle: dir, Start: true, Streams: allStreams})
		if err != nil {
			b.Fatal(err)
		}
		<-p.Done()
		closeNow(p)
		if err := p.Delete(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	h, err := New(&Options{Runtime: runcPath, Root: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	id, dir := bundle(b, []string{"sleep", "1000"})
	for b.Loop() {
		p, err := h.Create(b.Context(), &host.CreateSpec{ID: id, Bundle: dir, Start: true, Streams: allStreams})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		closeNow(p)
		if err := p.Delete(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkDelete(b *testing.B) {
	h, err := New(&Options{Runtime: runcPath, Root: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	id, dir := bundle(b, []string{"sleep", "1000"})
	for b.Loop() {
		b.StopTimer()
		p, err := h.Create(b.Context(), &host.CreateSpec{ID: id, Bundle: dir, Start: true, Streams: allStreams})
		if err != nil {
			b.Fatal(err)
		}
		closeNow(p)
		if err := p.Kill(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := p.Delete(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExec(b *testing.B) {
	h, err := New(&Options{Runtime: runcPath, Root: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	id, p := run(b, h, host.StreamSpec{}, []string{"sleep", "1000"})
	for name, own := range map[string]bool{"cgroup": true, "tag": false} {
		b.Run(name, func(b *testing.B) {
			h.subgroups.Store(own)
			for b.Loop() {
				x, err := h.Exec(b.Context(), &host.ExecSpec{ContainerID: id, ID: "x", Process: process("true"), Streams: allStreams})
				if err != nil {
					b.Fatal(err)
				}
				<-x.Done()
				closeNow(x)
				if err := x.Delete(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	// The bound from below: the runtime alone, without streams and exit.
	b.Run("bare", func(b *testing.B) {
		file := filepath.Join(b.TempDir(), "p.json")
		text, _ := json.Marshal(process("true"))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			err := h.call(b.Context(), &call{sub: "exec", args: []string{"--detach", "--process", file, id}, timeout: h.timeout})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	if err := p.Delete(b.Context()); err != nil {
		b.Fatal(err)
	}
}
