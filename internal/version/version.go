// Package version says which Berth this is. Everything may import it.
package version

// Version is set by the build.
var Version = "dev"
