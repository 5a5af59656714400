package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pgreconciler/reconciler/client"
)

type deployment struct {
	Image   string   `json:"image"`
	Secrets []string `json:"secrets"` // names
}

type secret struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// newController returns a controller that keeps a directory equal to the deployments of an informer.
func newController(informer *client.Informer, dir string) *client.Controller {
	deployments, secrets := client.For[deployment](informer, "deployment"), client.For[secret](informer, "secret")
	using := deployments.Index("secret", func(d deployment) []string { return d.Secrets })

	reconcile := func(_ context.Context, key string) (client.Result, error) {
		path := filepath.Join(dir, url.PathEscape(key))
		d, wanted, err := deployments.Get(key)
		if err != nil {
			return client.Failed(err.Error()), nil
		}
		if !wanted {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return client.Result{}, err
			}
			return client.Absent(), nil
		}
		env := map[string]string{}
		for _, name := range d.Secrets {
			s, found, err := secrets.Get(name)
			if err != nil || !found {
				return client.Failed(fmt.Sprintf("there is no secret %q", name)), nil
			}
			env[name] = s.Value
		}
		manifest, err := json.Marshal(map[string]any{"image": d.Image, "env": env})
		if err != nil {
			return client.Result{}, err
		}
		return client.Applied(), os.WriteFile(path, manifest, 0o600)
	}

	controller := client.NewController(informer, "deployment", reconcile, client.Existing(existing(dir)))
	client.Map(controller, secrets, func(old, now *secret) []string {
		if now == nil {
			now = old
		}
		return using.Keys(now.Name)
	})
	return controller
}

// existing yields the keys of the files in the directory.
func existing(dir string) func(context.Context) iter.Seq2[string, error] {
	return func(context.Context) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			files, err := os.ReadDir(dir)
			for _, file := range files {
				if key, notOurs := url.PathUnescape(file.Name()); notOurs == nil && !yield(key, nil) {
					return
				}
			}
			if err != nil {
				yield("", err)
			}
		}
	}
}
