package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"time"

	bolt "go.etcd.io/bbolt"

	"berth/internal/image"
)

// layerKey is the key of a container's root file system, or of an image that it
// mounts.
var layerKey = regexp.MustCompile(`^([0-9a-f]{64})(-image-[0-9]+)?$`)

// layers lists the containers' layers by key, with their snapshotter; or it says
// why they cannot be listed. A running berthd has the database to itself.
func layers(o *Options) (map[string]string, string) {
	path := filepath.Join(o.Root, "images", "meta.db")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, ""
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: 200 * time.Millisecond})
	if err != nil {
		return nil, "layers were not looked at, as berthd has their database open: stop it to have them compared (pods live on)"
	}
	defer db.Close()
	out := map[string]string{}
	err = db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("v1"))
		for _, name := range []string{"k8s.io", "snapshots"} {
			if b != nil {
				b = b.Bucket([]byte(name))
			}
		}
		if b == nil {
			return nil
		}
		return b.ForEachBucket(func(snapshotter []byte) error {
			return b.Bucket(snapshotter).ForEachBucket(func(key []byte) error {
				if layerKey.Match(key) {
					out[string(key)] = string(snapshotter)
				}
				return nil
			})
		})
	})
	if err != nil {
		return nil, "layers were not looked at: " + err.Error()
	}
	return out, ""
}

// strayLayers are those of containers that no pod has.
func strayLayers(o *Options, l *ledger, have map[string]string) (out []*Finding) {
	for _, key := range sorted(have) {
		c := layerKey.FindStringSubmatch(key)[1]
		if l.containers[c] == nil {
			out = append(out, &Finding{Kind: "layer", Name: key, Pod: c, give: removeLayer(o, key, have[key])})
		}
	}
	return out
}

func removeLayer(o *Options, key, snapshotter string) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := image.New(ctx, &image.Config{Root: filepath.Join(o.Root, "images"), State: filepath.Join(o.State, "images"), Snapshotter: snapshotter})
		if err != nil {
			return err
		}
		return errors.Join(s.RemoveRootfs(ctx, key), s.Close())
	}
}
