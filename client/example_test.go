package client_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

type app struct {
	Image string `json:"image"`
}

func ExampleInformer() {
	server := streamtest.NewServer("eu") // instead of a running reconciler
	server.Set("app", "web", app{Image: "v1"})
	c := server.Client() // client.New("https://reconciler.example.org:8443", client.TokenFile("/run/secrets/eu"))

	informer := client.NewInformer(c, "eu", client.InformerOptions{})
	apps := client.For[app](informer, "app")
	byImage := apps.Index("image", func(a app) []string { return []string{a.Image} })

	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { fmt.Println("ended:", informer.Run(ctx)) })
	<-informer.Synced()
	for key, a := range apps.All() {
		fmt.Println(key, a.Image)
	}

	revision := server.Set("app", "worker", app{Image: "v1"})
	if err := informer.WaitFor(ctx, revision); err != nil {
		fmt.Println(err)
	}
	fmt.Println(byImage.Keys("v1"))
	stop()
	running.Wait()
	// Output:
	// web v1
	// [web worker]
	// ended: <nil>
}

func ExampleController() {
	server := streamtest.NewServer("eu") // instead of a running reconciler
	server.Set("app", "web", app{Image: "v1"})
	c := server.Client()

	informer := client.NewInformer(c, "eu", client.InformerOptions{})
	apps := client.For[app](informer, "app")
	controller := client.NewController(informer, "app", func(_ context.Context, key string) (client.Result, error) {
		a, found, err := apps.Get(key)
		switch {
		case err != nil:
			return client.Failed(err.Error()), nil // until the object changes
		case !found:
			fmt.Println("delete", key)
			return client.Absent(), nil
		}
		fmt.Println("apply", key, a.Image)
		return client.Applied(), nil
	})

	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = informer.Run(ctx) })
	running.Go(func() { _ = controller.Run(ctx) })

	o, _ := server.WaitObserved(ctx, "app", "web", client.StateApplied)
	fmt.Println("reported", o.State)
	server.Delete("app", "web")
	o, _ = server.WaitObserved(ctx, "app", "web", client.StateAbsent)
	fmt.Println("reported", o.State)
	stop()
	running.Wait()
	// Output:
	// apply web v1
	// reported applied
	// delete web
	// reported absent
}
