package keeper

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
)

// Updates at once each add to what the one before has recorded: none is lost.
func TestUpdatesFollowOneAnother(t *testing.T) {
	m := newFake()
	k := keep(t, t.TempDir(), m, "b")
	c := container(t, k, run(t, k, "p"), "c")
	const n = 20
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			err := k.UpdateContainer(t.Context(), c, json.RawMessage(`{}`), func(c *Container) (json.RawMessage, error) {
				var sum int
				if c.Resources != nil {
					if err := json.Unmarshal(c.Resources, &sum); err != nil {
						return nil, err
					}
				}
				return fmt.Append(nil, sum+1), nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	_, v, err := k.Container(c)
	if err != nil || string(v.Resources) != fmt.Sprint(n) {
		t.Errorf("recorded %s, %v; want %d", v.Resources, err, n)
	}
}
