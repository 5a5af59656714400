package fakeapi

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// schemas converts objects of built-in kinds by their schemas.
type schemas struct {
	managedfields.TypeConverter

	*typed.Parser
}

func (s schemas) ObjectToTyped(object runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	kind := object.GetObjectKind().GroupVersionKind()
	group, _, _ := strings.Cut(cmp.Or(kind.Group, "core"), ".")
	return s.Type(fmt.Sprintf("io.k8s.api.%s.%s.%s", group, kind.Version, kind.Kind)).FromUnstructured(object.(*unstructured.Unstructured).Object, options...)
}

// builtinSchemas reads the schemas from the source of client-go: to import them is to compile the types of all kinds.
var builtinSchemas = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	dir, err := exec.Command("go", "list", "-find", "-f", "{{.Dir}}", "k8s.io/client-go/applyconfigurations/internal").Output()
	if err != nil {
		return nil, fmt.Errorf("find the schemas of client-go: %w", err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "internal.go"))
	if err != nil {
		return nil, err
	}
	_, text, _ := strings.Cut(string(source), "`")
	text, _, _ = strings.Cut(text, "`")
	parser, err := typed.NewParser(typed.YAMLObject(text))
	return schemas{managedfields.NewDeducedTypeConverter(), parser}, err
})
