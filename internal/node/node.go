// Package node serves berth.node.v1: what people ask of a node beyond CRI. It
// knows the image service; cmd/berthd registers it next to CRI.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	nodev1 "berth/api/node/v1"
	"berth/internal/image"
	"berth/internal/rpcerr"
)

// Images is the part of the image service that is used here.
type Images interface {
	Import(ctx context.Context, r io.Reader) ([]*image.Image, error)
}

// Server implements berth.node.v1.
type Server struct {
	nodev1.UnimplementedNodeServer
	images Images
}

// New returns a server on images.
func New(images Images) *Server { return &Server{images: images} }

// Register adds the service to s.
func (n *Server) Register(s *grpc.Server) { nodev1.RegisterNodeServer(s, n) }

// Import stores the archive that comes in chunks. An archive that is cut short,
// or that no image was made of, is an error; nothing of it stays.
func (n *Server) Import(st grpc.ClientStreamingServer[nodev1.ImportRequest, nodev1.ImportResponse]) error {
	r, w := io.Pipe()
	go func() {
		for {
			m, err := st.Recv()
			if err != nil {
				w.CloseWithError(err) // io.EOF is the archive's end
				return
			}
			if _, err := w.Write(m.GetChunk()); err != nil {
				return
			}
		}
	}()
	images, err := n.images.Import(st.Context(), r)
	r.CloseWithError(errors.New("the import has ended"))
	if err != nil {
		return rpcerr.ToGRPC(fmt.Errorf("import archive: %w", err))
	}
	resp := &nodev1.ImportResponse{}
	for _, i := range images {
		resp.Images = append(resp.Images, &nodev1.Image{Id: i.ID, Tags: i.Tags})
	}
	return st.SendAndClose(resp)
}
