package pod

import (
	"reflect"
	"testing"
	"time"
)

// A probe that found nothing leaves an intent, also for the daemon after the
// next, which reads of it in the journal: its fold is that of the one before.
func TestProbedIsStillIntended(t *testing.T) {
	facts := append(Declare("a", "", &Traits{}, nil, "boot", time.Unix(1, 0)),
		&Fact{Kind: Holds, Res: Dir}, &Fact{Kind: Holds, Res: Namespaces}, &Fact{Kind: Holds, Res: Shim})
	first := Recover(Fold(nil, facts...))
	released := &Fact{Kind: Released, Res: Network}
	first = Fold(first, released)
	again := Fold(nil, append(facts, released)...)
	if !reflect.DeepEqual(first.Holdings, again.Holdings) {
		t.Errorf("%+v\nwhen read again: %+v", first, again)
	}
	for _, s := range []*State{first, Recover(again)} {
		es := Plan(s)
		if len(es) != 1 || es[0].Res != Network {
			t.Errorf("plan: %+v, want the network", es)
		}
	}
}
