package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/database"
)

// listenPatience is how long a NOTIFY may take to arrive; on a server that works it takes a millisecond.
const listenPatience = 3 * time.Second

// Finding is one result of doctor, as reconciler.doctor() returns them.
type Finding struct {
	Check   string `json:"check_name"`
	OK      bool   `json:"ok"`
	Finding string `json:"finding"`
	Remedy  string `json:"remedy"`
}

// CheckListen looks whether what is notified through database_url is heard on direct_url.
func CheckListen(ctx context.Context, cfg *config.Config) Finding {
	if cfg.Notify == config.NotifyOff {
		return Finding{"listen", true, fmt.Sprintf("notify is off: changes are found by polling every %s", config.FormatDuration(cfg.PollInterval)), ""}
	}
	err := heard(ctx, cfg)
	switch {
	case err == nil:
		return Finding{"listen", true, "what is notified through database_url is heard on direct_url", ""}
	case errors.Is(err, errUnheard):
		return Finding{
			"listen", false, fmt.Sprintf("what is notified through database_url is not heard on direct_url within %s", listenPatience),
			"direct_url must lead to the server itself, without a pooler in between, and to the same database as database_url",
		}
	}
	return Finding{"listen", false, fmt.Sprintf("LISTEN could not be tried: %s", databaseFailure(err).Text), "Correct direct_url and database_url; see `reconciler config print`."}
}

var errUnheard = errors.New("the notification did not arrive")

func heard(ctx context.Context, cfg *config.Config) error {
	listener, err := database.Connect(ctx, cfg.DirectURL.Reveal(), database.Options{Name: "reconciler doctor"})
	if err != nil {
		return err
	}
	defer closeConn(ctx, listener)
	channel := "reconciler_doctor_" + strings.ToLower(rand.Text()[:12])
	if _, err := listener.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	pooled := cfg.DatabaseURL.Reveal() != cfg.DirectURL.Reveal()
	writer, err := database.Connect(ctx, cfg.DatabaseURL.Reveal(), database.Options{Name: "reconciler doctor", Simple: pooled})
	if err != nil {
		return err
	}
	defer closeConn(ctx, writer)
	if _, err := writer.Exec(ctx, "SELECT pg_notify($1, '')", channel); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, listenPatience, errUnheard)
	defer cancel()
	if _, err := listener.WaitForNotification(waiting); err != nil {
		if cause := context.Cause(waiting); cause != nil {
			return cause
		}
		return err
	}
	return nil
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeTimeout, errors.New("closing the session took too long"))
	defer cancel()
	_ = conn.Close(ctx) // Nothing depends on the goodbye.
}
