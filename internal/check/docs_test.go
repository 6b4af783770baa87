package check

import (
	"os"
	"strings"
	"testing"

	"github.com/baton-ha/baton/internal/mysql"
)

// TestAccountsAreDocumented: docs/accounts.md has the statements that package mysql gives, word for word.
func TestAccountsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/accounts.md")
	if err != nil {
		t.Fatal(err)
	}
	admin, probe := mysql.Account{User: "baton_admin", Password: "ADMIN"}, mysql.Account{User: "baton_probe", Password: "PROBE"}
	for _, family := range []mysql.Family{mysql.MariaDB, mysql.MySQL} {
		all := strings.Join(mysql.Grants(family, "10.77.0.%", admin, probe), ";\n") + ";\n"
		if !strings.Contains(string(text), all) {
			t.Errorf("docs/accounts.md lacks the statements for %s:\n%s", family, all)
		}
	}
}
