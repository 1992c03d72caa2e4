package keeper

import (
	"berth/internal/fault"
	"berth/internal/pod"
)

// moment is a point of the keeper's work at which a test may look, fail, wait or
// kill: before and after every effect and every change of a journal. Its name
// is made of three words, as in "before take network".
type moment struct {
	when, verb, what string
	pod              *actor
	effect           *pod.Effect // of an effect
	result           *result     // after an effect
	facts            []*pod.Fact // of a write
	synced           bool        // of a write: it is on disk afterwards
}

func (m *moment) name() string { return m.when + " " + m.verb + " " + m.what }

// at is called at every moment. What it returns fails what the moment is about.
func (k *Keeper) at(m *moment) error {
	if k.tap != nil {
		if err := k.tap(m); err != nil {
			return err
		}
	}
	if fault.Enabled {
		return fault.At(m.name())
	}
	return nil
}
