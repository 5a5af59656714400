package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// healthReasonMost is how many bytes a reason has at most.
const healthReasonMost = 1000

// ObjectHealth returns the health of the member that is worst off, by the rules of kstatus, and stricter where these guess: a member whose
// kind has a status is not healthy before a controller has written one.
func (c *cluster) ObjectHealth(ctx context.Context, ref driver.Ref) (driver.ObjectHealth, error) {
	members := decode(ref.Memory)
	if len(members) == 0 {
		return driver.ObjectHealth{}, errors.New("its members are not known")
	}
	worst := driver.ObjectHealth{State: driver.Healthy}
	for _, at := range slices.SortedFunc(maps.Keys(members), place.compare) {
		one, err := c.memberHealth(ctx, at)
		if err != nil {
			out := c.scrubber.Outcome(c.outcome(ctx, err))
			return driver.ObjectHealth{}, fmt.Errorf("%s: %w", at, out.Err)
		}
		if one.State == driver.Unhealthy {
			return one, nil
		}
		if worst.State == driver.Healthy {
			worst = one
		}
	}
	return worst, nil
}

func (c *cluster) memberHealth(ctx context.Context, at place) (driver.ObjectHealth, error) {
	mapping, err := c.mapper.find(ctx, at.GroupKind, "")
	var unknown *unknownKindError
	if errors.As(err, &unknown) {
		return notYet(at, unknown.Error()), nil
	}
	if err != nil {
		return driver.ObjectHealth{}, err
	}
	live, err := c.full.Resource(mapping.resource).Namespace(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return notYet(at, "it does not exist"), nil
	}
	if err != nil {
		return driver.ObjectHealth{}, err //nolint:wrapcheck // by the caller
	}
	if rule := c.health[at.GroupKind]; rule != nil {
		return judge(at, live, rule), nil
	}
	return healthOf(at, live, mapping.status)
}

func healthOf(at place, live *unstructured.Unstructured, hasStatus bool) (driver.ObjectHealth, error) {
	found, err := status.Compute(live)
	if err != nil {
		return driver.ObjectHealth{}, fmt.Errorf("read its status: %w", err)
	}
	switch found.Status {
	case status.FailedStatus:
		return driver.ObjectHealth{State: driver.Unhealthy, Reason: reason(at, found.Message)}, nil
	case status.CurrentStatus:
		if written, _ := live.Object["status"].(map[string]any); hasStatus && len(written) == 0 {
			return notYet(at, "it has no status yet: no controller has looked at it"), nil
		}
		return driver.ObjectHealth{State: driver.Healthy}, nil
	default:
		return notYet(at, found.Message), nil
	}
}

func notYet(at place, why string) driver.ObjectHealth {
	return driver.ObjectHealth{State: driver.Progressing, Reason: reason(at, why)}
}

func reason(at place, why string) string {
	return driver.Snippet([]byte(fmt.Sprintf("%s: %s", at, why)), healthReasonMost)
}
