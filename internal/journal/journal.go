// Package journal keeps a pod's facts: an append-only file of checksummed
// lines, one file a pod. It knows nothing of what a fact means and may import
// nothing of Berth.
//
// The first line names the format and the pod; every other line is
//
//	<CRC-32C of the JSON, 8 hex digits> <JSON>\n
//
// so that `cat` tells the story. A line counts once its newline is there: a
// last line without one was being written when the power went, and is cut off
// at the next Open. Anything else that does not check is damage: Open says so,
// sets a copy aside, and returns the facts before it.
package journal

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
)

const magic = "berth-journal 1 "

var table = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged marks a journal whose bytes do not check. The error's text names
// the file and the line.
var ErrDamaged = errors.New("journal is damaged")

// Journal is an open journal. It is not safe for concurrent use: its pod's
// actor owns it.
type Journal struct {
	path  string
	f     *os.File
	size  int64
	dirty bool  // written since the last sync
	room  int64 // up to here the disk has given the file its blocks
	torn  bool  // what a failed write left could not be cut off yet
	syncs int
	lines int
}

// reserve is how much of the disk a journal asks for ahead of its end, in bytes:
// a full disk refuses new pods, and lets those that exist come to their end.
const reserve = 32 << 10

// Create starts the journal of pod id in dir, with first as its first lines,
// and returns when they, and the file's name, are on disk. The file must not
// exist. A disk without room for a pod's life is refused.
func Create(dir, id string, first ...[]byte) (*Journal, error) {
	path := filepath.Join(dir, id)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create journal: %w", err)
	}
	j := &Journal{path: path, f: f}
	b := append([]byte(magic+id), '\n')
	err = j.makeRoom(len(b))
	if err == nil {
		err = j.write(b, first, true)
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	if err := syncDir(dir); err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return j, nil
}

// Open reads the journal of pod id in dir and returns its lines. A torn last
// line is cut off. When the journal is damaged, the lines before the damage are
// returned with an error that wraps ErrDamaged; the journal stays usable (it was
// copied to <id>.damaged, and the next write cuts its damaged end off).
func Open(dir, id string) (*Journal, [][]byte, error) {
	path := filepath.Join(dir, id)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read journal: %w", err)
	}
	lines, good, bad := parse(b, id)
	if bad != nil {
		bad = fmt.Errorf("%s: %w: %w", path, ErrDamaged, bad)
		if err := os.WriteFile(path+".damaged", b, 0o600); err != nil {
			return nil, lines, errors.Join(bad, fmt.Errorf("set the damaged journal aside: %w", err))
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, lines, errors.Join(bad, fmt.Errorf("open journal: %w", err))
	}
	j := &Journal{path: path, f: f, size: int64(good), lines: len(lines)}
	if good == 0 { // not even the first line is whole
		if err = j.cut(); err == nil {
			err = j.write([]byte(magic+id+"\n"), nil, true)
		}
	} else if bad != nil {
		// Cut with the next write, which says what the damage led to: until then
		// the journal stays damaged for whoever opens it.
		j.torn = true
	} else if good < len(b) {
		err = j.cut()
	}
	if err != nil {
		f.Close()
		return nil, lines, errors.Join(bad, fmt.Errorf("cut the damaged end off journal %s: %w", path, err))
	}
	return j, lines, bad
}

// Read returns the lines of pod id's journal in dir, for people: it changes
// nothing, and can be used while a daemon has the journal open. A damaged
// journal gives the lines before the damage and an error that wraps ErrDamaged.
func Read(dir, id string) ([][]byte, error) {
	path := filepath.Join(dir, id)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	lines, _, bad := parse(b, id)
	if bad != nil {
		return lines, fmt.Errorf("%s: %w: %w", path, ErrDamaged, bad)
	}
	return lines, nil
}

// parse returns the whole lines of b, how many bytes of b are good, and what is
// wrong after them (nil for nothing, or for a torn last line).
func parse(b []byte, id string) (lines [][]byte, good int, bad error) {
	head := []byte(magic + id + "\n")
	if !bytes.HasPrefix(b, head) {
		if bytes.HasPrefix(head, b) {
			return nil, 0, nil // torn at birth
		}
		return nil, 0, errors.New("line 1 is not a journal's")
	}
	good = len(head)
	for n := 2; good < len(b); n++ {
		end := bytes.IndexByte(b[good:], '\n')
		if end < 0 {
			return lines, good, nil
		}
		line := b[good : good+end]
		if len(line) < 10 || line[8] != ' ' {
			return lines, good, fmt.Errorf("line %d has no checksum", n)
		}
		sum, err := strconv.ParseUint(string(line[:8]), 16, 32)
		if err != nil || uint32(sum) != crc32.Checksum(line[9:], table) {
			return lines, good, fmt.Errorf("line %d does not match its checksum", n)
		}
		lines = append(lines, line[9:])
		good += end + 1
	}
	return lines, good, nil
}

// Append adds lines (JSON, without newlines) in one write. With sync it returns
// when they, and all before them, are on disk. On failure nothing of them stays.
func (j *Journal) Append(sync bool, lines ...[]byte) error {
	return j.write(nil, lines, sync)
}

func (j *Journal) write(b []byte, lines [][]byte, sync bool) error {
	for _, l := range lines {
		b = fmt.Appendf(b, "%08x ", crc32.Checksum(l, table))
		b = append(append(b, l...), '\n')
	}
	if j.torn {
		if err := j.cut(); err != nil {
			return fmt.Errorf("cut a failed write off journal %s: %w", j.path, err)
		}
	}
	if len(b) > 0 {
		_ = j.makeRoom(len(b)) // what is there may do
		if _, err := j.f.Write(b); err != nil {
			return errors.Join(fmt.Errorf("append to journal: %w", err), j.cut())
		}
		j.dirty = true
	}
	if sync && j.dirty {
		if err := fdatasync(j.f); err != nil {
			// What the kernel dropped cannot be known: do not pretend.
			return errors.Join(fmt.Errorf("sync journal %s: %w", j.path, err), j.cut())
		}
		j.dirty = false
		j.syncs++
	}
	j.size += int64(len(b))
	j.lines += len(lines)
	return nil
}

// makeRoom asks the disk for blocks, when the next n bytes would use up half of
// what it has given.
func (j *Journal) makeRoom(n int) error {
	end := j.size + int64(n)
	if end+reserve/2 <= j.room {
		return nil
	}
	if err := allocate(j.f, j.size, end+reserve-j.size); err != nil {
		return fmt.Errorf("reserve room for journal %s: %w", j.path, err)
	}
	j.room = end + reserve
	return nil
}

// cut takes off what a failed write left behind the last good line.
func (j *Journal) cut() error {
	err := j.f.Truncate(j.size)
	j.torn, j.room = err != nil, j.size // the blocks beyond went as well
	return err
}

// Counts tells how many lines and syncs this journal has cost since it was
// opened here.
func (j *Journal) Counts() (lines, syncs int) { return j.lines, j.syncs }

// Remove deletes the journal. It can be called on a closed one.
func (j *Journal) Remove() error {
	j.Close()
	if err := os.Remove(j.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove journal: %w", err)
	}
	return nil
}

// Close closes the file. What was appended without sync is the kernel's.
func (j *Journal) Close() error {
	if j.f == nil {
		return nil
	}
	err := j.f.Close()
	j.f = nil
	return err
}

// List returns the ids of the journals in dir; a missing dir has none.
func List(dir string) ([]string, error) {
	es, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list journals: %w", err)
	}
	var ids []string
	for _, e := range es {
		if e.Type().IsRegular() && filepath.Ext(e.Name()) == "" {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder of journals: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync folder of journals: %w", err)
	}
	return nil
}
