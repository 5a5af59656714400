package kubernetes

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
)

// celCostMost bounds what an expression may cost, in CEL's units: far more than a look at some conditions, far less than a second.
const celCostMost = 100_000

// readHealth reads expressions in CEL that say when an object of a kind is healthy, by kind.
func readHealth(r *options.Reader) map[schema.GroupKind]cel.Program {
	rules := map[schema.GroupKind]cel.Program{}
	texts := r.StringMap("health")
	env, err := cel.NewEnv(cel.Variable("object", cel.DynType))
	if err != nil {
		r.Problemf("health", "cannot be read: %s", err)
		return nil
	}
	for _, kind := range slices.Sorted(maps.Keys(texts)) {
		if !kindName.MatchString(kind) {
			r.Problemf("health", "%q is not a kind: write Widget.example.com", kind)
			continue
		}
		program, err := compile(env, texts[kind])
		if err != nil {
			r.Problemf("health."+kind, "%s", driver.Snippet([]byte(err.Error()), errorShownMost))
			continue
		}
		rules[schema.ParseGroupKind(kind)] = program
	}
	return rules
}

func compile(env *cel.Env, text string) (cel.Program, error) {
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("is not an expression in CEL: %w", err)
	}
	if kind := ast.OutputType(); kind != cel.BoolType && kind != cel.DynType {
		return nil, fmt.Errorf("must be true or false, and is of type %s", kind)
	}
	return env.Program(ast, cel.CostLimit(celCostMost)) //nolint:wrapcheck // by the caller
}

// judge returns the health of an object by an expression. A field that is not there yet is a reason to wait.
func judge(at place, live *unstructured.Unstructured, rule cel.Program) driver.ObjectHealth {
	value, _, err := rule.Eval(map[string]any{"object": live.Object})
	switch {
	case err != nil:
		return notYet(at, fmt.Sprintf("the expression in options.health fails: %s", err))
	case value.Value() != true:
		return notYet(at, "the expression in options.health is not true")
	}
	return driver.ObjectHealth{State: driver.Healthy}
}
