package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ImageFsInfo tells what images and writable layers take. Both are on one file
// system, so container_filesystems stays empty, as CRI says.
func (s *Service) ImageFsInfo(ctx context.Context, _ *runtime.ImageFsInfoRequest) (*runtime.ImageFsInfoResponse, error) {
	u, err := s.images.Usage(ctx)
	if err != nil {
		return nil, err
	}
	fs := []*runtime.FilesystemUsage{{
		Timestamp:  nanos(u.At),
		FsId:       &runtime.FilesystemIdentifier{Mountpoint: u.Mountpoint},
		UsedBytes:  &runtime.UInt64Value{Value: u.Bytes},
		InodesUsed: &runtime.UInt64Value{Value: u.Inodes},
	}}
	return &runtime.ImageFsInfoResponse{ImageFilesystems: fs}, nil
}
