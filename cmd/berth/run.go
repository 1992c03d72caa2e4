package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var runCommand = &cli.Command{
	Name: "run", Usage: "run an image in a pod of its own", ArgsUsage: "IMAGE [COMMAND [ARG ...]]",
	Flags: []cli.Flag{
		&cli.StringFlag{Name: "name", Usage: "the pod's `NAME`; made up if empty"},
		&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "print the container's id and return"},
		&cli.BoolFlag{Name: "rm", Usage: "remove the pod when it ends"},
		&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "`NAME=VALUE`"},
		&cli.StringFlag{Name: "runtime", Usage: "runtime `HANDLER`"},
		&cli.BoolFlag{Name: "host-network", Usage: "use the host's network"},
	},
	Action: func(c *cli.Context) error {
		if c.NArg() < 1 {
			return fmt.Errorf("usage: berth run [OPTIONS] IMAGE [COMMAND [ARG ...]]")
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		return cl.run(c)
	},
}

func (c *client) run(cc *cli.Context) error {
	ctx, image := cc.Context, cc.Args().First()
	if err := c.ensure(ctx, image); err != nil {
		return err
	}
	pod, ctr, err := configs(cc)
	if err != nil {
		return err
	}
	p, err := c.pods.RunPodSandbox(ctx, &runtime.RunPodSandboxRequest{Config: pod, RuntimeHandler: cc.String("runtime")})
	if err != nil {
		return err
	}
	id, err := c.startIn(ctx, p.PodSandboxId, pod, ctr)
	if err != nil {
		c.remove(context.WithoutCancel(ctx), p.PodSandboxId)
		return err
	}
	if cc.Bool("detach") {
		fmt.Println(id)
		return nil
	}
	code, err := c.follow(ctx, id, os.Stdout, os.Stderr)
	if cc.Bool("rm") {
		if rerr := c.remove(context.WithoutCancel(ctx), p.PodSandboxId); err == nil {
			err = rerr
		}
	}
	if err == nil && code != 0 {
		return cli.Exit("", int(code))
	}
	return err
}

// ensure pulls the image unless it is here.
func (c *client) ensure(ctx context.Context, image string) error {
	st, err := c.images.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: image}})
	if err != nil {
		return err
	}
	if st.Image != nil {
		return nil
	}
	_, err = c.images.PullImage(ctx, &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: image}})
	return err
}

// startIn creates and starts a container in a pod.
func (c *client) startIn(ctx context.Context, pod string, pc *runtime.PodSandboxConfig, cc *runtime.ContainerConfig) (string, error) {
	r, err := c.pods.CreateContainer(ctx, &runtime.CreateContainerRequest{PodSandboxId: pod, Config: cc, SandboxConfig: pc})
	if err != nil {
		return "", err
	}
	_, err = c.pods.StartContainer(ctx, &runtime.StartContainerRequest{ContainerId: r.ContainerId})
	return r.ContainerId, err
}

// podName is a DNS label.
var podName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func configs(c *cli.Context) (*runtime.PodSandboxConfig, *runtime.ContainerConfig, error) {
	var b [4]byte
	rand.Read(b[:])
	random := hex.EncodeToString(b[:])
	name := c.String("name")
	if name == "" {
		name = "run-" + random
	}
	if !podName.MatchString(name) {
		return nil, nil, fmt.Errorf("--name %q: want a-z, 0-9 and -, at most 63: it is the host name, too", name)
	}
	// A name is a pod's whole identity here, so that berthd refuses a second one.
	uid := name
	ns := &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER}
	if c.Bool("host-network") {
		ns.Network = runtime.NamespaceMode_NODE
	}
	pod := &runtime.PodSandboxConfig{
		Metadata: &runtime.PodSandboxMetadata{Name: name, Namespace: "default", Uid: uid}, Hostname: name,
		LogDirectory: filepath.Join(c.String("log-dir"), name+"-"+random),
		Linux:        &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: ns}},
	}
	if c.Bool("host-network") {
		pod.Hostname = ""
	}
	ctr := &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: name}, Image: &runtime.ImageSpec{Image: c.Args().First()},
		LogPath: "0.log",
		Linux: &runtime.LinuxContainerConfig{
			// Without any, a container keeps the oom_score_adj of berthd, which
			// a service manager makes low.
			Resources: &runtime.LinuxContainerResources{},
			SecurityContext: &runtime.LinuxContainerSecurityContext{
				NamespaceOptions: ns, Seccomp: &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault},
			},
		},
	}
	if args := c.Args().Tail(); len(args) > 0 {
		ctr.Command, ctr.Args = args[:1], args[1:]
	}
	for _, e := range c.StringSlice("env") {
		k, v, ok := strings.Cut(e, "=")
		if !ok {
			return nil, nil, fmt.Errorf("--env %s: want NAME=VALUE", e)
		}
		ctr.Envs = append(ctr.Envs, &runtime.KeyValue{Key: k, Value: []byte(v)})
	}
	return pod, ctr, nil
}
