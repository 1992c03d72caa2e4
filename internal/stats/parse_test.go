package stats

import (
	"reflect"
	"testing"
)

func TestParseUint(t *testing.T) {
	for in, want := range map[string]uint64{"0": 0, "12\n": 12, " 7 ": 7, "18446744073709551615": 1<<64 - 1} {
		if v, ok := parseUint([]byte(in)); !ok || v != want {
			t.Errorf("%q: %d %v", in, v, ok)
		}
	}
	for _, in := range []string{"", "\n", "max", "-1", "1.5", "18446744073709551616", "99999999999999999999999"} {
		if v, ok := parseUint([]byte(in)); ok {
			t.Errorf("%q is %d", in, v)
		}
	}
}

const netDev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  net1: 7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0
  eth0:12345678901 11 2 3 0 0 0 0 222 22 4 5 0 0 0 0
bad0: 1 2
`

func TestParseNetDev(t *testing.T) {
	want := []iface{
		{name: "net1", rxBytes: 7, rxPackets: 1, txBytes: 8, txPackets: 1},
		{name: "eth0", rxBytes: 12345678901, rxPackets: 11, rxErrs: 2, rxDrop: 3, txBytes: 222, txPackets: 22, txErrs: 4, txDrop: 5},
	}
	if got := parseNetDev([]byte(netDev)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestParseOdd(t *testing.T) {
	if p := parsePSI([]byte("avg10=1\n")); p != nil {
		t.Errorf("pressure %+v", p)
	}
	// Kernels before 5.13 have no "full" of cpu.
	if p := parsePSI([]byte("some avg10=2.00 avg60=0 avg300=0 total=3\n")); p == nil || p.some.total != 3000 || p.full.total != 0 {
		t.Errorf("pressure %+v", p)
	}
	var d devices
	d.parseIOStat([]byte("8:0\n8:1 rbytes=1 bogus\nx rbytes=1\n8:1 wbytes=2\n"))
	if len(d) != 1 || d[0] != (device{major: 8, minor: 1, readBytes: 1, writeBytes: 2}) {
		t.Errorf("devices %+v", d)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(netDev))
	for _, s := range v2Files {
		f.Add([]byte(s))
	}
	f.Add([]byte("8:0 Read 1\nTotal 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		parsePSI(b)
		for _, i := range parseNetDev(b) {
			if i.name == "" || i.name == "lo" {
				t.Errorf("interface %q", i.name)
			}
		}
		var d devices
		d.parseIOStat(b)
		d.parseBlkio(b, true)
		pairs(b, func(key []byte, _ uint64) {
			if len(key) > len(b) {
				t.Error("a key from elsewhere")
			}
		})
	})
}

// The weights are what runc makes of these shares.
func TestSharesOf(t *testing.T) {
	for weight, want := range map[uint64]uint64{0: 0, 1: 2, 17: 102, 59: 521, 100: 1024, 10000: 262144} {
		if got := sharesOf(weight); got != want {
			t.Errorf("weight %d: %d shares, want %d", weight, got, want)
		}
	}
}
