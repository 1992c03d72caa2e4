package stream

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "berthd"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, priv.Public(), priv)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := TLS(cert, filepath.Join(dir, "none"), ""); err == nil {
		t.Error("a missing key was accepted")
	}
	if _, err := TLS(cert, key, key); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("an authority without a certificate: %v", err)
	}
	cfg, err := TLS(cert, key, "")
	if err != nil {
		t.Fatal(err)
	}
	run := func(s *Server, p string) (string, error) {
		var out bytes.Buffer
		u := execURL(t, s, &runtime.ExecRequest{Cmd: sh("echo secret"), Stdout: true})
		if !strings.HasPrefix(u, "https://") {
			t.Errorf("URL %s", u)
		}
		err := executor(t, p, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out})
		return out.String(), err
	}
	s := serve(t, newShim(t), &Options{TLS: cfg})
	for _, p := range protocols {
		if out, err := run(s, p); err != nil || out != "secret\n" {
			t.Errorf("%s: %q %v", p, out, err)
		}
	}
	if cfg, err = TLS(cert, key, cert); err != nil {
		t.Fatal(err)
	}
	s = serve(t, newShim(t), &Options{TLS: cfg})
	if out, err := run(s, "spdy"); err == nil {
		t.Errorf("a client without a certificate got %q", out)
	}
}
