package cri

import (
	"strings"

	"github.com/moby/sys/signal"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const defaultStopSignal = "SIGTERM"

// signalText is a CRI signal as moby and OCI spell it: SIGNAL_SIGRTMINPLUS3 is
// SIGRTMIN+3.
func signalText(s runtime.Signal) string {
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	name = strings.Replace(name, "PLUS", "+", 1)
	return strings.Replace(name, "MINUS", "-", 1)
}

// signals are CRI's signals by their number on Linux. Where two names mean one
// number, the lower enum value wins: it is the usual name (ABRT, not IOT).
var signals = func() map[int]runtime.Signal {
	m := map[int]runtime.Signal{}
	for v := runtime.Signal_SIGNAL_SIGABRT; v <= runtime.Signal_SIGNAL_SIGRTMAX; v++ {
		n, err := signal.ParseSignal(signalText(v))
		if _, taken := m[int(n)]; err == nil && !taken {
			m[int(n)] = v
		}
	}
	return m
}()

// stopSignal is the signal that ends a container: the config's, else the
// image's, else SIGTERM. An image may write it as a name or a number; one that
// is neither was never a signal and counts as none.
func stopSignal(field string, config runtime.Signal, image string) (string, error) {
	if config != runtime.Signal_SIGNAL_RUNTIME_DEFAULT {
		if _, known := runtime.Signal_name[int32(config)]; !known {
			return "", invalid(field, "%d is no signal", config)
		}
		return signalText(config), nil
	}
	if v, ok := parseSignal(image); ok {
		return signalText(v), nil
	}
	return defaultStopSignal, nil
}

// parseSignal is a signal's name or number as CRI's enum.
func parseSignal(s string) (runtime.Signal, bool) {
	// An alias must come back as it went in.
	if v, ok := runtime.Signal_value["SIGNAL_"+strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(s)]; ok && s != "RUNTIME_DEFAULT" {
		return runtime.Signal(v), true
	}
	n, err := signal.ParseSignal(s)
	if err != nil {
		return 0, false
	}
	v, ok := signals[int(n)]
	return v, ok
}
