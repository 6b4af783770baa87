package lab

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestQuantile(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		q      float64
		want   float64
	}{
		{"none", nil, 0.5, 0},
		{"one", []float64{7}, 0.99, 7},
		{"median of two is the lower", []float64{9, 1}, 0.5, 1},
		{"p99 of twenty is the worst", []float64{20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, 0.99, 20},
		{"least", []float64{3, 1, 2}, 0, 1},
		{"most", []float64{3, 1, 2}, 1, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Quantile(tt.values, tt.q); got != tt.want {
				t.Errorf("Quantile = %v, want %v", got, tt.want)
			}
		})
	}
}

// TestQuantileCovers: the definition itself, counted naively.
func TestQuantileCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 50), 1, 40).Draw(t, "values")
		permille := rapid.IntRange(1, 1000).Draw(t, "permille")
		got := Quantile(values, float64(permille)/1000)
		below, upTo := 0, 0
		for _, v := range values {
			if v < got {
				below++
			}
			if v <= got {
				upTo++
			}
		}
		if upTo*1000 < permille*len(values) || below*1000 >= permille*len(values) {
			t.Fatalf("quantile %d‰ of %v = %v covers %d, %d are below", permille, values, got, upTo, below)
		}
	})
}

func TestTable(t *testing.T) {
	results := []Result{
		{Scenario: "mysql-kill", Bind: "netlink", OK: true, OutageMS: 90, Steps: map[string]float64{"bind": 3, "promote": 12}},
		{Scenario: "mysql-kill", Bind: "netlink", OutageMS: 130, Steps: map[string]float64{"bind": 5, "promote": 12}},
		{Scenario: "own", Bind: "keepalived", OK: true, OutageMS: 10},
	}
	got := Table(results)
	for _, want := range []string{"mysql-kill", " 1/2 ", "90 / 130", "120 / 350", "keepalived + script", "promote 12.0, bind 3.0", "own"} {
		if !strings.Contains(got, want) {
			t.Errorf("table lacks %q:\n%s", want, got)
		}
	}
}
