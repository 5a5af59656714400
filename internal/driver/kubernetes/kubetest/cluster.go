//go:build kubernetes

package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// binariesEnv names the folder of the programs.
const binariesEnv = "RECONCILER_TEST_KUBERNETES"

const adminToken = "admin"

// Cluster is a running control plane.
type Cluster struct {
	dir, etcdURL, serverURL   string
	etcd, server, controllers *program
	probe                     *http.Client
}

var shared struct {
	sync.Mutex

	cluster *Cluster
	err     error
}

// Start returns the cluster that the tests of this binary share. The first call starts it. Do not stop its parts: see New.
func Start(t testing.TB) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = start()
	}
	require.NoError(t, shared.err)
	return shared.cluster
}

// Stop ends the shared cluster, if there is one, and removes its data.
func Stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		shared.cluster.end()
	}
	shared.cluster, shared.err = nil, nil
}

// New starts a cluster for one test, which may stop parts of it.
func New(t testing.TB) *Cluster {
	t.Helper()
	c, err := start()
	require.NoError(t, err)
	t.Cleanup(c.end)
	return c
}

func start() (*Cluster, error) {
	binaries := os.Getenv(binariesEnv)
	if binaries == "" {
		return nil, fmt.Errorf("%s is not set: run make test/kubernetes", binariesEnv)
	}
	dir, err := os.MkdirTemp("", "reconciler-kubetest-")
	if err != nil {
		return nil, fmt.Errorf("make folder for the cluster: %w", err)
	}
	c := &Cluster{dir: dir, probe: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the certificate is made at the start
	}}}
	err = c.prepare(binaries)
	if err == nil {
		err = c.run()
	}
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// prepare writes keys, tokens and the kubeconfig of the controllers.
func (c *Cluster) prepare(binaries string) error {
	etcdPort, err := freePort()
	if err != nil {
		return err
	}
	serverPort, err := freePort()
	if err != nil {
		return err
	}
	c.etcdURL, c.serverURL = "http://127.0.0.1:"+etcdPort, "https://127.0.0.1:"+serverPort
	key, tokens, kubeconfig := filepath.Join(c.dir, "sa.key"), filepath.Join(c.dir, "tokens.csv"), filepath.Join(c.dir, "kubeconfig")
	c.etcd = newProgram(binaries, c.dir, "etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", c.etcdURL,
		"--advertise-client-urls", c.etcdURL, "--listen-peer-urls", "http://127.0.0.1:0", "--unsafe-no-fsync")
	c.server = newProgram(binaries, c.dir, "kube-apiserver", "--etcd-servers", c.etcdURL, "--cert-dir", c.dir,
		"--secure-port", serverPort, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1",
		"--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC", "--token-auth-file", tokens,
		"--service-account-issuer", "https://127.0.0.1", "--service-account-key-file", key,
		"--service-account-signing-key-file", key, "--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none")
	c.controllers = newProgram(binaries, c.dir, "kube-controller-manager", "--kubeconfig", kubeconfig, "--leader-elect=false",
		"--secure-port", "0", "--kube-api-qps", "200", "--kube-api-burst", "400",
		"--controllers", "namespace-controller,garbage-collector-controller,deployment-controller,replicaset-controller")
	if err := writeKey(key); err != nil {
		return err
	}
	if err := os.WriteFile(tokens, []byte(adminToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	return c.writeKubeconfig(kubeconfig)
}

func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key of service accounts: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key of service accounts: %w", err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write key of service accounts: %w", err)
	}
	return nil
}

func (c *Cluster) writeKubeconfig(path string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: c.serverURL, CertificateAuthority: c.certificate()}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: adminToken}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// certificate is the file of the server's certificate and of the authority that it made for it.
func (c *Cluster) certificate() string { return filepath.Join(c.dir, "apiserver.crt") }

func (c *Cluster) run() error {
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.startServer(); err != nil {
		return err
	}
	return c.controllers.start()
}

func (c *Cluster) startEtcd() error {
	if err := c.etcd.start(); err != nil {
		return err
	}
	return c.etcd.wait(c.probe, c.etcdURL+"/health", "")
}

func (c *Cluster) startServer() error {
	if err := c.server.start(); err != nil {
		return err
	}
	return c.server.wait(c.probe, c.serverURL+"/readyz", adminToken)
}

func (c *Cluster) end() {
	for _, p := range []*program{c.controllers, c.server, c.etcd} {
		if p != nil {
			p.stop()
		}
	}
	_ = os.RemoveAll(c.dir)
}

// freePort returns a port that was free a moment ago.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close() //nolint:errcheck // it was only looked at
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), nil
}

// Config returns a configuration of a client that may do everything.
func (c *Cluster) Config() *rest.Config {
	return &rest.Config{Host: c.serverURL, BearerToken: adminToken, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAFile: c.certificate()}}
}
