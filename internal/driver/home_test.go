package driver_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// A mark is the owner's only if all of it is equal.
func TestF163_OwnersDifferInEachField(t *testing.T) {
	t.Parallel()
	mine := driver.Owner{Target: "eu", Home: driver.Home{Database: "app", System: "7400", ID: "7d4f"}}
	require.Equal(t, `{"target":"eu","database":"app","system":"7400","id":"7d4f"}`, mine.Mark())
	require.NoError(t, mine.Check([]byte(mine.Mark()+"\n")))
	for name, change := range map[string]func(*driver.Owner){
		"Target":   func(o *driver.Owner) { o.Target = "us" },
		"Database": func(o *driver.Owner) { o.Database = "copy" },
		"System":   func(o *driver.Owner) { o.System = "7401" },
		"ID":       func(o *driver.Owner) { o.ID = "7d50" },
		"Agent":    func(o *driver.Owner) { o.Agent = true },
	} {
		other := mine
		change(&other)
		require.EqualError(t, other.Check([]byte(mine.Mark())),
			"belongs to target eu of database app (installation 7d4f, system 7400), not to "+other.String(), name)
	}
	require.EqualError(t, mine.Check([]byte("hello")), "may be another target's: invalid character 'h' looking for beginning of value")
}

func TestHomeIsReadFromItsText(t *testing.T) {
	t.Parallel()
	for _, home := range []driver.Home{
		{}, {ID: "7d4f"}, {ID: "7d4f", System: "7400", Database: "app"}, {ID: "7d4f", System: "-1", Database: "a/b %2F\n\u00e4"},
	} {
		text := home.String()
		for _, r := range text {
			require.True(t, r > ' ' && r <= '~', "it is fit for a header: %q", text)
		}
		require.Equal(t, home, driver.ParseHome(text))
	}
	require.Equal(t, driver.Home{ID: "streamtest"}, driver.ParseHome("streamtest"))
}
