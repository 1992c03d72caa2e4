package cri

import (
	"berth/internal/image"
	"berth/internal/keeper"
	"berth/internal/network"
	"berth/internal/stats"
	"berth/internal/stream"
)

// The services of a real berthd are what the front asks for.
var (
	_ keeper.API = (*keeper.Keeper)(nil)
	_ Images     = (*image.Service)(nil)
	_ Streams    = (*stream.Server)(nil)
	_ Stats      = (*stats.Collector)(nil)
	_ Network    = (*network.Service)(nil)
)
