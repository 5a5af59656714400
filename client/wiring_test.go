package client_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

func nothing(context.Context, string) (client.Result, error) { return client.Applied(), nil }

// Everything that is wired wrongly is one error, before anything is asked of the server.
func TestWrongWiringIsOneErrorOfRun(t *testing.T) {
	t.Parallel()
	c := streamtest.NewServer("eu").Client()
	i := client.NewInformer(c, "eu", client.InformerOptions{Resources: []string{"dns", "app", "app"}, Prefix: "a-"})
	apps := client.For[deployment](i, "app")
	client.For[deployment](i, "")
	client.For[deployment](i, "secret")
	apps.Index("image", func(deployment) []string { return nil })
	apps.Index("image", func(deployment) []string { return nil })
	apps.Index("nil", nil)
	first := client.NewController(i, "app", nothing)
	second := client.NewController(i, "app", nil, client.Workers(0), client.Backoff(time.Second, time.Millisecond))
	other := client.NewInformer(c, "eu", client.InformerOptions{})
	client.Map(first, client.For[secret](other, "secret"), func(_, _ *secret) []string { return nil })
	client.Map[deployment](first, apps, nil)
	require.Equal(t, []string{
		`prefix "a-" needs exactly one resource, not 2`,
		`For for resource "": the resource has no name`,
		`For for resource "secret": the informer follows app, dns only`,
		`Index for resource "app": there are two indexes "image"`,
		`Index for resource "app": index "nil" has no function`,
		`NewController for resource "app": it has no handler`,
		`NewController for resource "app": Workers is 0, and must be at least 1`,
		`NewController for resource "app": Backoff is 1s to 1ms, and must be a positive time to one that is not shorter`,
		`NewController for resource "app": it has a controller already`,
		`Map for resource "secret": its objects and its controller have different informers`,
		`Map for resource "secret": the informer follows app, dns only`,
		`Map for resource "app": it has no function`,
	}, strings.Split(i.Run(t.Context()).Error(), "\n"))
	require.EqualError(t, i.Run(t.Context()), "the informer of target eu has begun before: make another one")
	require.EqualError(t, second.Run(t.Context()), `the controller of resource "app" is not wired: Run of the informer returns why`)
	require.EqualError(t, second.Run(t.Context()), `the controller of resource "app" has begun before: make another informer and controller`)
}

// You may run a controller before you make the next one. The race detector looks.
func TestControllerRunsBeforeAnotherIsMade(t *testing.T) {
	t.Parallel()
	i := client.NewInformer(streamtest.NewServer("eu").Client(), "eu", client.InformerOptions{})
	start(t, client.NewController(i, "app", nothing).Run)
	start(t, client.NewController(i, "secret", nothing).Run)
	start(t, i.Run)
	<-i.Synced()
}

func TestWiringAfterRunPanics(t *testing.T) {
	t.Parallel()
	i := client.NewInformer(streamtest.NewServer("eu").Client(), "eu", client.InformerOptions{Resources: []string{"app"}})
	apps := client.For[deployment](i, "app")
	c := client.NewController(i, "app", nothing)
	start(t, i.Run)
	<-i.Synced()
	const late = ` for resource "app" after Run of the informer of target eu has begun: call it before`
	require.PanicsWithValue(t, "client: Index"+late, func() { apps.Index("image", func(deployment) []string { return nil }) })
	require.PanicsWithValue(t, "client: Map"+late, func() { client.Map(c, apps, func(_, _ *deployment) []string { return nil }) })
	require.PanicsWithValue(t, "client: NewController"+late, func() { client.NewController(i, "app", nothing) })
	require.PanicsWithValue(t, `client: For for resource "dns": the informer follows app only`, func() { client.For[deployment](i, "dns") })
	client.For[secret](i, "app")
}
