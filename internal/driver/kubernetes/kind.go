package kubernetes

import (
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
)

// protectedDefault are the kinds whose deletes wait for approval unless options.protected names others: others lose data with them.
var protectedDefault = []string{
	"Namespace", "CustomResourceDefinition.apiextensions.k8s.io", "PersistentVolume", "PersistentVolumeClaim",
}

// Kind is the driver `kubernetes`.
func Kind() driver.Kind { return driver.Kind{Name: "kubernetes", Open: open} }

// settings are the options that calls look at.
type settings struct {
	namespace   string // of manifests that name none, and of the ApplySet
	namespaces  []string
	kinds       []schema.GroupKind
	protected   []schema.GroupKind
	manager     string
	force       bool
	overrule    []string // managers whose fields are taken over
	adopt       bool
	propagation metav1.DeletionPropagation
	ignore      map[schema.GroupKind][]pointer
	health      map[schema.GroupKind]cel.Program
}

func open(target string, opts driver.Options, env driver.Env) (driver.Driver, error) {
	r := options.New(opts)
	config, namespace := readConnection(r)
	s := settings{
		namespace:  readNamespace(r, "namespace", namespace),
		namespaces: readNamespaces(r),
		kinds:      readKinds(r, "kinds", nil),
		protected:  readKinds(r, "protected", protectedDefault),
		manager:    readManager(r, target),
		overrule:   r.Strings("force_managers"),
		adopt:      r.Bool("adopt", false),
		ignore:     readIgnore(r),
		health:     readHealth(r),
	}
	s.force = readChoice(r, "conflicts", "refuse", "force") == "force"
	s.propagation = metav1.DeletionPropagation(capital(readChoice(r, "propagation", "background", "foreground", "orphan")))
	if len(s.namespaces) > 0 && !slices.Contains(s.namespaces, s.namespace) {
		r.Problemf("namespaces", "must contain %q, the namespace of the ApplySet and of manifests that name none (options.namespace)", s.namespace)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return newCluster(target, config, s, env.Log())
}

func capital(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

// readChoice reads an option that has one of several values; the first is the default.
func readChoice(r *options.Reader, name string, values ...string) string {
	value := r.String(name, values[0])
	if !slices.Contains(values, value) {
		r.Problemf(name, "must be one of %s", strings.Join(values, ", "))
		return values[0]
	}
	return value
}

var (
	namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	managerName   = regexp.MustCompile(`^[[:graph:]]{1,128}$`)
	kindName      = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*(\.[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`)
)

func readNamespace(r *options.Reader, name, fallback string) string {
	namespace := r.String(name, fallback)
	if !namespaceName.MatchString(namespace) {
		r.Problemf(name, "%q cannot be the name of a namespace", namespace)
	}
	return namespace
}

func readNamespaces(r *options.Reader) []string {
	namespaces := r.Strings("namespaces")
	for _, one := range namespaces {
		if !namespaceName.MatchString(one) {
			r.Problemf("namespaces", "%q cannot be the name of a namespace", one)
		}
	}
	return namespaces
}

// readKinds reads kinds as kubectl prints them: Deployment.apps, and ConfigMap for those of the core group.
func readKinds(r *options.Reader, name string, fallback []string) []schema.GroupKind {
	texts := fallback
	if r.Has(name) {
		texts = r.Strings(name)
	}
	kinds := make([]schema.GroupKind, 0, len(texts))
	for _, text := range texts {
		if !kindName.MatchString(text) {
			r.Problemf(name, "%q is not a kind: write Deployment.apps, or ConfigMap for one of the core group", text)
			continue
		}
		kinds = append(kinds, schema.ParseGroupKind(text))
	}
	return kinds
}

func readManager(r *options.Reader, target string) string {
	manager := r.String("field_manager", setName(target))
	if !managerName.MatchString(manager) {
		r.Problemf("field_manager", "must have 1 to 128 printable characters")
	}
	return manager
}

// readIgnore reads fields that are left to others, such as Deployment.apps/spec/replicas: a kind and a JSON pointer.
func readIgnore(r *options.Reader) map[schema.GroupKind][]pointer {
	rules := map[schema.GroupKind][]pointer{}
	for _, text := range r.Strings("ignore") {
		kind, path, _ := strings.Cut(text, "/")
		p, err := parsePointer("/" + path)
		switch {
		case !kindName.MatchString(kind):
			r.Problemf("ignore", "%q: write a kind and a JSON pointer, such as Deployment.apps/spec/replicas", text)
		case err != nil:
			r.Problemf("ignore", "%q: %s", text, err)
		default:
			gk := schema.ParseGroupKind(kind)
			if gk == secretKind && p[0] == fieldStringData {
				p[0] = fieldData // see storeSecret
			}
			rules[gk] = append(rules[gk], p)
		}
	}
	return rules
}
