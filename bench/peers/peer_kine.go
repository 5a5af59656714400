package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/drivers/pgsql"
	kine "github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	kinePrefix = "/things/"
	// kineConns keeps a connection for every writer; with kine's 20 the others would be opened and closed all the time.
	kineConns = mostWriters + 16
)

// kinePeer keeps the objects in kine, an etcd whose store is PostgreSQL, and watches them. With two servers the writer
// talks to one and the consumer watches the other, as in every cluster of more than one node.
type kinePeer struct {
	count    int
	servers  []*kineServer
	writer   *clientv3.Client
	reader   *clientv3.Client
	revision []int64 // by id: of the last put; a writer has its ids to itself
	loop     *loop
}

func (p *kinePeer) about() about {
	name := map[int]string{1: "kine, put and watch at one server", 2: "kine, put at one server, watch at another"}[p.count]
	return about{
		name:    name,
		noTable: "With kine, the objects are in kine's own table: there is no table of the user to be slowed down.",
		noGiant: "kine takes one put in a transaction.",
	}
}

// prepare makes kine's table and puts every row of things into it by SQL: as puts it would take minutes.
func (p *kinePeer) prepare(ctx context.Context, s *stage) error {
	for range p.count {
		server, err := newKineServer(ctx, s.url)
		if err != nil {
			return err
		}
		p.servers = append(p.servers, server)
	}
	return s.exec(ctx,
		`INSERT INTO kine (name, created, deleted, create_revision, prev_revision, lease, value)
			SELECT '`+kinePrefix+`' || lpad(id::text, 8, '0'), 1, 0, 0, 0, 0, convert_to(row_to_json(things)::text, 'UTF8') FROM things ORDER BY id`,
		`VACUUM ANALYZE kine`)
}

func kineKey(id int) string { return fmt.Sprintf("%s%08d", kinePrefix, id) }

func (p *kinePeer) start(ctx context.Context, s *stage) error {
	clients := make([]*clientv3.Client, len(p.servers))
	for i, server := range p.servers {
		client, err := server.listen(ctx)
		if err != nil {
			return err
		}
		clients[i] = client
	}
	p.writer, p.reader = clients[0], clients[len(clients)-1]
	// One list, not pages of it: kine looks at all that follows to make any of them.
	list, err := p.reader.Get(ctx, kinePrefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	p.revision = make([]int64, len(list.Kvs)+1)
	for _, kv := range list.Kvs {
		row, err := deliverValue(kv.Value, s.deliver)
		if err != nil {
			return err
		}
		p.revision[row.ID] = kv.ModRevision
	}
	ready := make(chan struct{})
	p.loop = goLoop(ctx, func(ctx context.Context) error { return p.watch(ctx, s, list.Header.Revision+1, ready) })
	select {
	case <-ready:
		return nil
	case err := <-p.loop.done:
		p.loop.done <- err
		return err
	}
}

func deliverValue(value []byte, deliver func(change)) (row state, err error) {
	if err := json.Unmarshal(value, &row); err != nil {
		return row, fmt.Errorf("read a value: %w", err)
	}
	deliver(change{row.ID, row.N})
	return row, nil
}

func (p *kinePeer) watch(ctx context.Context, s *stage, revision int64, ready chan struct{}) error {
	for answer := range p.reader.Watch(ctx, kinePrefix, clientv3.WithPrefix(), clientv3.WithRev(revision), clientv3.WithCreatedNotify()) {
		if err := answer.Err(); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if answer.Created {
			close(ready)
		}
		for _, event := range answer.Events {
			if _, err := deliverValue(event.Kv.Value, s.deliver); err != nil {
				return err
			}
		}
	}
	return errors.New("the watch has ended")
}

// commit puts as the API server of Kubernetes does, guarded by the revision that it knows: in kine an unguarded put of a
// key that exists takes three statements more. It is timed from its start, as the insert and its commit are one statement.
func (p *kinePeer) commit(ctx context.Context, _ *pgx.Conn, c change) (sent time.Time, err error) {
	value, err := json.Marshal(stateOf(c))
	if err != nil {
		return sent, err
	}
	key := kineKey(c.id)
	sent = time.Now()
	answer, err := p.writer.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", p.revision[c.id])).
		Then(clientv3.OpPut(key, string(value))).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return sent, fmt.Errorf("put: %w", err)
	}
	if !answer.Succeeded {
		return sent, fmt.Errorf("put %s: somebody else has put it", key)
	}
	p.revision[c.id] = answer.Header.Revision
	return sent, nil
}

func (p *kinePeer) stop(context.Context) error {
	err := p.loop.stop()
	for _, server := range p.servers {
		server.close()
	}
	return err
}

// kineServer is what the command kine runs, with its defaults.
type kineServer struct {
	backend    kine.Backend
	grpc       *grpc.Server
	client     *clientv3.Client
	stopLoops  context.CancelFunc
	closeStore context.CancelFunc
	wg         sync.WaitGroup
}

func newKineServer(ctx context.Context, url string) (*kineServer, error) {
	s := &kineServer{stopLoops: func() {}}
	ctx, s.closeStore = context.WithCancel(context.WithoutCancel(ctx))
	_, source, _ := strings.Cut(url, "://")
	_, backend, err := pgsql.New(ctx, &s.wg, &drivers.Config{
		DataSourceName:       source,
		ConnectionPoolConfig: generic.ConnectionPoolConfig{MaxIdle: kineConns, MaxIdleTime: 2 * time.Minute},
		CompactTimeout:       5 * time.Second, CompactMinRetain: 1000, CompactBatchSize: 1000, PollBatchSize: 500,
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("open kine's store: %w", err)
	}
	s.backend = backend
	return s, nil
}

// listen serves etcd's protocol on a port of its own, and connects to it.
func (s *kineServer) listen(ctx context.Context) (*clientv3.Client, error) {
	ctx, s.stopLoops = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.backend.Start(ctx); err != nil {
		return nil, fmt.Errorf("start kine: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for kine: %w", err)
	}
	s.grpc = grpc.NewServer(grpc.MaxSendMsgSize(math.MaxInt32))
	kine.New(s.backend, "http", 5*time.Second, "3.6.11").Register(s.grpc)
	s.wg.Go(func() { _ = s.grpc.Serve(listener) }) // ends with Stop
	s.client, err = clientv3.New(clientv3.Config{Endpoints: []string{"http://" + listener.Addr().String()}, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, fmt.Errorf("connect to kine: %w", err)
	}
	return s.client, nil
}

func (s *kineServer) close() {
	if s.client != nil {
		_ = s.client.Close() // says only that its context was cancelled
	}
	if s.grpc != nil {
		// As kine ends: a moment for what is being answered, so that nothing asks a store that is closed.
		impatient := time.AfterFunc(2*time.Second, s.grpc.Stop)
		s.grpc.GracefulStop()
		impatient.Stop()
	}
	s.stopLoops()
	s.closeStore()
	s.wg.Wait()
}

// quietKine lets kine say what fails and nothing else: its logger is the process's.
func quietKine() { logrus.SetLevel(logrus.ErrorLevel) }
