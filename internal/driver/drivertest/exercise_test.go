package drivertest_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wrongDriver names the rule that TestExercise's driver breaks; unset for none.
const wrongDriver = "DRIVERTEST_WRONG"

func TestExercise(t *testing.T) {
	t.Parallel()

	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return newMemory(os.Getenv(wrongDriver)).fixture(t) })
}

func TestExerciseKeeping(t *testing.T) {
	t.Parallel()

	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return newMemory(os.Getenv(wrongDriver)).keepingFixture(t) })
}

func TestExerciseReporting(t *testing.T) {
	t.Parallel()

	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return newMemory(os.Getenv(wrongDriver)).reportingFixture(t) })
}

func TestExerciseDiffing(t *testing.T) {
	t.Parallel()

	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return newMemory(os.Getenv(wrongDriver)).differingFixture(t) })
}

func TestExerciseGuarding(t *testing.T) {
	t.Parallel()

	drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return newMemory(os.Getenv(wrongDriver)).guardingFixture(t) })
}

func TestExerciseWaiting(t *testing.T) {
	t.Parallel()

	drivertest.ExerciseWaiting(t, func(t *testing.T) drivertest.Fixture { return newMemory(os.Getenv(wrongDriver)).waitingFixture(t) })
}
