// Package fault stops a daemon at named points, for test/faults: before and
// after every effect, and before and after every write to a journal. It is
// compiled in by the build tag faults only; without it At does nothing, and the
// compiler takes the calls out. It may import nothing of Berth.
//
//	BERTH_FAULT=<point>[#<n>]:<kill|stop|fail|delay>[,…]
//
// A point is named by its words with hyphens, as in before-take-network or
// after-write-container-started; every kind of fact and every effect has one. With
// #n it strikes when the point is reached for the n-th time (1 without it), once.
// kill and stop send SIGKILL and SIGSTOP to the own process, fail returns an
// error, delay waits for Delay.
package fault
