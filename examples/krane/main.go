// Command krane keeps a directory of manifests equal to the deployments of a stream: a file for each, with the values of the secrets
// that it names. The directory stands for a cluster; controller.go is what you would write for yours.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "krane:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return errors.New("usage: krane SERVER TARGET DIRECTORY STORE")
	}
	c, err := client.New(args[0], client.Logger(slog.Default()))
	if err != nil {
		return err
	}
	store, err := client.OpenStore(args[3])
	if err != nil {
		return err
	}
	informer := client.NewInformer(c, args[1], client.InformerOptions{Resources: []string{"deployment", "secret"}, Store: store})
	controller := newController(informer, args[2])
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return informer.Run(ctx) })
	running.Go(func() error { return controller.Run(ctx) })
	return errors.Join(running.Wait(), store.Close())
}
