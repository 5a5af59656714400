package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// cluster is the driver of one target.
// answerWithin is how long a watch waits for the answer to each of its requests.
const answerWithin = time.Minute

type cluster struct {
	settings

	target   string
	log      *slog.Logger
	http     *http.Client
	meta     metadata.Interface
	full     dynamic.Interface
	mapper   *mapper
	set      *applySet
	server   string // URL of the cluster
	scrubber driver.Scrubber
	waits    waits
	fights   fights

	answerWithin time.Duration // set before the first call

	restored chan struct{} // receives a value when the cluster was set back to an earlier state

	mu sync.Mutex // guards what follows
	bases
	claims    claims
	listed    map[string][]byte // by the mark of an object: the memory that the last listing found, until the next call for it
	grown     chan struct{}     // closed when the target has members of another kind
	unwatched map[string]error  // by kind and namespace: why the watch of it fails
}

func newCluster(target string, config *rest.Config, s settings, log *slog.Logger) (*cluster, error) {
	c := &cluster{
		settings: s, target: target, log: log.With("target", target, "driver", "kubernetes"), scrubber: secretsOf(config),
		set: newApplySet(target, s.namespace), waits: waits{since: map[string]wait{}}, fights: fights{open: map[place]*fight{}}, listed: map[string][]byte{},
		bases: newBases(), claims: claims{}, server: config.Host, grown: make(chan struct{}), answerWithin: answerWithin,
		restored: make(chan struct{}, 1), unwatched: map[string]error{},
	}
	config = prepared(config)
	var err error
	if c.http, err = rest.HTTPClientFor(config); err == nil {
		c.meta, err = metadata.NewForConfigAndClient(config, c.http)
	}
	if err == nil {
		c.full, err = dynamic.NewForConfigAndClient(config, c.http)
	}
	if err == nil {
		c.mapper, err = newMapper(config, c.http, discoverTimeout)
	}
	if err != nil {
		return nil, driver.Problems{{Path: "options.kubeconfig", Text: fmt.Sprintf("cannot be used: %s", err)}}
	}
	return c, nil
}

// Start notes on whose behalf the cluster is called: a copy of the database has targets of the same names, and so the same marks.
func (c *cluster) Start(_ context.Context, home driver.Home) { c.set.start(home) }

// Check asks for the ApplySet: that takes a connection, credentials, and a right that every call needs. There need not be one yet.
func (c *cluster) Check(ctx context.Context) error {
	_, err := c.meta.Resource(configMaps).Namespace(c.set.namespace).Get(ctx, c.set.name, metav1.GetOptions{})
	if err == nil || apierrors.IsNotFound(err) && !missingKind(err) {
		return nil
	}
	return c.scrubber.Outcome(c.outcome(ctx, err)).Err
}

// Trouble returns what others change again each time it is repaired.
func (c *cluster) Trouble() error { return c.fights.trouble() }

// Contested returns how many members that are.
func (c *cluster) Contested() int {
	n, _ := c.fights.pausing()
	return n
}

// Close closes idle connections.
func (c *cluster) Close(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// finish makes an outcome fit for others, and has the members remembered.
func (c *cluster) finish(out driver.Outcome, m memory) driver.Outcome {
	return c.scrubber.Outcome(out).Remember(m.encode())
}
