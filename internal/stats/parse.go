package stats

import (
	"bytes"
	"math"
	"strconv"
)

// parseUint reads a decimal number and ignores white space around it.
func parseUint(b []byte) (uint64, bool) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return 0, false
	}
	var v uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		d := uint64(c - '0')
		if v > (math.MaxUint64-d)/10 {
			return 0, false
		}
		v = v*10 + d
	}
	return v, true
}

// pairs calls f for each line "key value" of a flat keyed file.
func pairs(b []byte, f func(key []byte, value uint64)) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		key, value, ok := bytes.Cut(line, []byte(" "))
		if !ok {
			continue
		}
		if v, ok := parseUint(value); ok {
			f(key, v)
		}
	}
}

// pressure is one line of a PSI file. total is nanoseconds, the averages are
// percent.
type pressure struct {
	total                uint64
	avg10, avg60, avg300 float64
}

// psi is a PSI file: some tasks were waiting, or all of them (full).
type psi struct{ some, full pressure }

// parsePSI reads a pressure file; nil when it is not one. The kernel counts in
// microseconds.
func parsePSI(b []byte) *psi {
	var p psi
	found := false
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		kind, rest, _ := bytes.Cut(line, []byte(" "))
		var to *pressure
		switch string(kind) {
		case "some":
			to = &p.some
		case "full":
			to = &p.full
		default:
			continue
		}
		found = true
		for field := range bytes.SplitSeq(rest, []byte(" ")) {
			key, value, _ := bytes.Cut(field, []byte("="))
			switch string(key) {
			case "avg10":
				to.avg10, _ = strconv.ParseFloat(string(value), 64)
			case "avg60":
				to.avg60, _ = strconv.ParseFloat(string(value), 64)
			case "avg300":
				to.avg300, _ = strconv.ParseFloat(string(value), 64)
			case "total":
				v, _ := parseUint(value)
				to.total = v * 1000
			}
		}
	}
	if !found {
		return nil
	}
	return &p
}

// device is what a cgroup did to a block device.
type device struct {
	major, minor                         uint64
	readBytes, writeBytes, reads, writes uint64
}

// devices are by major and minor.
type devices []device

func (ds *devices) of(number []byte) *device {
	a, b, ok := bytes.Cut(number, []byte(":"))
	if !ok {
		return nil
	}
	major, ok1 := parseUint(a)
	minor, ok2 := parseUint(b)
	if !ok1 || !ok2 {
		return nil
	}
	for i := range *ds {
		if d := &(*ds)[i]; d.major == major && d.minor == minor {
			return d
		}
	}
	*ds = append(*ds, device{major: major, minor: minor})
	return &(*ds)[len(*ds)-1]
}

// parseBlkio reads "8:0 Read 4096" lines of v1; bytes says what is counted.
func (ds *devices) parseBlkio(b []byte, isBytes bool) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		f := bytes.Fields(line)
		if len(f) != 3 {
			continue // "Total 4096"
		}
		v, ok := parseUint(f[2])
		op := string(f[1])
		if !ok || op != "Read" && op != "Write" {
			continue
		}
		d := ds.of(f[0])
		switch {
		case d == nil:
		case op == "Read" && isBytes:
			d.readBytes = v
		case op == "Read":
			d.reads = v
		case isBytes:
			d.writeBytes = v
		default:
			d.writes = v
		}
	}
}

// parseIOStat reads "8:0 rbytes=1 wbytes=2 rios=3 wios=4" lines of v2.
func (ds *devices) parseIOStat(b []byte) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		number, rest, ok := bytes.Cut(line, []byte(" "))
		if !ok {
			continue
		}
		d := ds.of(number)
		if d == nil {
			continue
		}
		for field := range bytes.FieldsSeq(rest) {
			key, value, _ := bytes.Cut(field, []byte("="))
			v, ok := parseUint(value)
			if !ok {
				continue
			}
			switch string(key) {
			case "rbytes":
				d.readBytes = v
			case "wbytes":
				d.writeBytes = v
			case "rios":
				d.reads = v
			case "wios":
				d.writes = v
			}
		}
	}
}

// iface is a network interface's counters.
type iface struct {
	name                               string
	rxBytes, rxPackets, rxErrs, rxDrop uint64
	txBytes, txPackets, txErrs, txDrop uint64
}

// parseNetDev reads /proc/<pid>/net/dev without the loopback.
func parseNetDev(b []byte) []iface {
	var out []iface
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		name, rest, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue // the two header lines
		}
		f := bytes.Fields(rest)
		n := string(bytes.TrimSpace(name))
		if n == "lo" || n == "" || len(f) < 16 {
			continue
		}
		at := func(i int) uint64 { v, _ := parseUint(f[i]); return v }
		out = append(out, iface{
			name:    n,
			rxBytes: at(0), rxPackets: at(1), rxErrs: at(2), rxDrop: at(3),
			txBytes: at(8), txPackets: at(9), txErrs: at(10), txDrop: at(11),
		})
	}
	return out
}
