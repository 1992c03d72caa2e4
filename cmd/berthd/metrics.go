package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"berth/internal/keeper"
	"berth/internal/pod"
)

// metrics are the daemon's own, for Prometheus. Usage of pods is CRI's affair.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
}

func newMetrics(k *keeper.Keeper) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_call_duration_seconds", Help: "CRI calls by method and code.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18),
		}, []string{"method", "code"}),
	}
	m.registry.MustRegister(m.calls, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&podCollector{
			keeper: k,
			pods:   prometheus.NewDesc("berth_pods", "Pods by state.", []string{"state"}, nil),
			ctrs:   prometheus.NewDesc("berth_containers", "Containers by state.", []string{"state"}, nil),
			facts:  prometheus.NewDesc("berth_journal_facts_total", "Facts written to journals.", nil, nil),
			syncs:  prometheus.NewDesc("berth_journal_syncs_total", "Synced writes to journals.", nil, nil),

			effects:  prometheus.NewDesc("berth_effects_total", "Steps of pods' lives by verb, resource and outcome (ok, failed, retried).", []string{"verb", "resource", "outcome"}, nil),
			retrying: prometheus.NewDesc("berth_retrying_steps", "Steps that failed and will be tried again.", nil, nil),
			strays:   prometheus.NewDesc("berth_strays", "Resources that could not be given back yet.", nil, nil),
			oldest:   prometheus.NewDesc("berth_oldest_step_seconds", "Age of the oldest step that is not finished.", nil, nil),
			recovery: prometheus.NewDesc("berth_recovery_seconds", "How long it took to read the journals at the start.", nil, nil),
		})
	return m
}

// options make the server count its calls.
func (m *metrics) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			begin := time.Now()
			resp, err := h(ctx, req)
			m.calls.WithLabelValues(info.FullMethod, status.Code(err).String()).Observe(time.Since(begin).Seconds())
			return resp, err
		})}
}

// serve serves /metrics at addr; nil when there is none. What ends it later goes
// to failed.
func (m *metrics) serve(addr string, failed chan<- error) (*http.Server, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("metrics.address: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { failed <- s.Serve(l) }()
	return s, nil
}

// podCollector counts the keeper's pods when it is asked.
type podCollector struct {
	keeper                   *keeper.Keeper
	pods, ctrs, facts, syncs *prometheus.Desc

	effects, retrying, strays, oldest, recovery *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *podCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.pods, c.ctrs, c.facts, c.syncs, c.effects, c.retrying, c.strays, c.oldest, c.recovery} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *podCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.keeper.Recovered() {
		return
	}
	pods := map[string]float64{"starting": 0, "ready": 0, "notready": 0}
	ctrs := map[string]float64{"created": 0, "running": 0, "exited": 0}
	for _, p := range c.keeper.Pods() {
		switch {
		case p.IsReady():
			pods["ready"]++
		case p.Stopping:
			pods["notready"]++
		default:
			pods["starting"]++
		}
		for _, k := range p.Containers {
			switch k.Status() {
			case pod.ContainerStateRunning:
				ctrs["running"]++
			case pod.ContainerStateExited:
				ctrs["exited"]++
			default:
				ctrs["created"]++
			}
		}
	}
	for s, n := range pods {
		ch <- prometheus.MustNewConstMetric(c.pods, prometheus.GaugeValue, n, s)
	}
	for s, n := range ctrs {
		ch <- prometheus.MustNewConstMetric(c.ctrs, prometheus.GaugeValue, n, s)
	}
	facts, syncs := c.keeper.Counts()
	ch <- prometheus.MustNewConstMetric(c.facts, prometheus.CounterValue, float64(facts))
	ch <- prometheus.MustNewConstMetric(c.syncs, prometheus.CounterValue, float64(syncs))
	st := c.keeper.Stats()
	for e, n := range st.Effects {
		ch <- prometheus.MustNewConstMetric(c.effects, prometheus.CounterValue, float64(n), e.Verb, e.Resource, e.Outcome)
	}
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(c.retrying, float64(st.Retrying))
	gauge(c.strays, float64(st.Strays))
	gauge(c.oldest, st.Oldest.Seconds())
	gauge(c.recovery, st.Recovery.Seconds())
}
