package database

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// surveyTimeout is how long a host may take to say which server it is.
	surveyTimeout = 5 * time.Second
	// surveyEvery is how often the hosts of a URL are compared.
	surveyEvery = 10 * time.Second
)

// Survey asks every host of a URL that names several which server it is. Of those that take writes the one on the latest
// timeline is the primary; an old one that came back is named in the log and not used. Hosts that do not answer are left out.
func (f *Fleet) Survey(ctx context.Context, url string) error {
	cfg, err := parse(url)
	if err != nil {
		return err
	}
	all := hosts(cfg)
	if len(all) < 2 {
		return nil
	}
	found := make([]Server, len(all))
	var asked sync.WaitGroup
	for i, host := range all {
		asked.Go(func() { found[i] = f.visit(ctx, host) })
	}
	asked.Wait()
	newest, err := f.compare(slices.DeleteFunc(found, func(s Server) bool { return s == Server{} }))
	if err == nil && newest != (Server{}) {
		err = f.judge(newest)
	}
	if err != nil {
		return connectError(cfg, err)
	}
	for _, server := range found {
		if server != (Server{}) && server != newest {
			_ = f.judge(server) // it is in the log
		}
	}
	return nil
}

// compare returns the server on the latest timeline, of those that are the system which this process works with. While it
// works with none they must be one.
func (f *Fleet) compare(found []Server) (newest Server, err error) {
	known := f.Known()
	for _, server := range found {
		isOne := known == Server{} && newest == Server{} || server.System == cmp.Or(known.System, newest.System)
		if !isOne && known == (Server{}) {
			return Server{}, &OtherServerError{server, newest}
		}
		if isOne && server.Timeline > newest.Timeline {
			newest = server
		}
	}
	return newest, nil
}

// visit returns which server a host is; the zero value when it does not answer, or takes no writes.
func (f *Fleet) visit(ctx context.Context, host *pgx.ConnConfig) Server {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	apply(host, Options{Name: "reconciler survey", Simple: true})
	conn, err := pgx.ConnectConfig(ctx, host)
	if err != nil {
		return Server{}
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is lost with it
	server, err := askServer(ctx, conn.PgConn())
	if err != nil {
		return Server{}
	}
	return server
}

// Watch surveys URLs again and again until ctx ends: a standby may be promoted while the old primary goes on taking writes.
func (f *Fleet) Watch(ctx context.Context, urls ...string) {
	ticker := time.NewTicker(surveyEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, url := range urls {
			_ = f.Survey(ctx, url) // it is in the log, and connections are refused for the same reason
		}
	}
}
