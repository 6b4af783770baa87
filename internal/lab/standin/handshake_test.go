package standin

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// packetOf writes one packet the way a session does.
func packetOf(t *testing.T, seq byte, p []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	f := newFramed(nil)
	f.w.Reset(&out)
	f.seq = seq
	if err := f.writePacket(p); err != nil {
		t.Fatal(err)
	}
	if err := f.w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestGreeting compares with the bytes that real Mycat 1.6.7.6 sends (mycat.md 1.1), thread id 7 and a seed of 'a' to 't'.
func TestGreeting(t *testing.T) {
	versionHex := hex.EncodeToString([]byte("5.6.29-mycat-1.6.7.5-release-20200428154739"))
	for _, tt := range []struct {
		name string
		old  bool
		want string
	}{
		{"useHandshakeV10=1", false, "6f000000 0a" + versionHex + "00 07000000 6162636465666768 00 cfb7 21 0200 0a00 15 00000000000000000000" +
			"696a6b6c6d6e6f7071727374 00 6d7973716c5f6e61746976655f70617373776f7264 00"},
		{"useHandshakeV10=0", true, "59000000 0a" + versionHex + "00 07000000 6162636465666768 00 cfb7 21 0200 00000000000000000000000000" +
			"696a6b6c6d6e6f7071727374 00"},
	} {
		got := hex.EncodeToString(packetOf(t, 0, greeting(7, []byte("abcdefghijklmnopqrst"), tt.old)))
		if want := strings.ReplaceAll(tt.want, " ", ""); got != want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, want)
		}
	}
}

func TestOKPacket(t *testing.T) {
	if got := hex.EncodeToString(packetOf(t, 2, okPacket(0, statusAutocommit, ""))); got != "0700000200000002000000" {
		t.Errorf("AUTH_OK = %s", got)
	}
	if got := string(mycatError(1495, "User readonly").packet()); got != "\xff\xd7\x05#HY000User readonly" {
		t.Errorf("error packet = %q", got)
	}
}

func TestSeed(t *testing.T) {
	for range 100 {
		if seed := newSeed(); len(seed) != 20 || bytes.IndexByte(seed, 0) >= 0 {
			t.Fatalf("seed %x: 20 bytes without a zero are wanted", seed)
		}
	}
}

// TestScramble compares with what a server computes: SHA1(seed + SHA1(SHA1(password))) xor the scramble is SHA1(password).
func TestScramble(t *testing.T) {
	seed := []byte("abcdefghijklmnopqrst")
	if got := hex.EncodeToString(scramble("secret", seed)); got != "" && len(got) != 40 {
		t.Errorf("scramble has %d hex digits", len(got))
	}
	if scramble("", seed) != nil || scrambleSHA256("", seed) != nil {
		t.Error("an empty password sends nothing")
	}
	if bytes.Equal(scramble("secret", seed), scramble("secret", []byte("bbcdefghijklmnopqrst"))) {
		t.Error("the scramble does not depend on the seed")
	}
}

// FuzzLogin feeds what any client may send before it is known.
func FuzzLogin(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x85\xa6\x0b\x00\x00\x00\x00\x01\x21" + strings.Repeat("\x00", 23) + "root\x00\x14aaaaaaaaaaaaaaaaaaaabank\x00mysql_native_password\x00"))
	f.Fuzz(func(_ *testing.T, p []byte) {
		_, _ = parseLogin(p)
		if len(p) > 0 {
			_ = parseError(p)
			_, _, _ = (&backend{}).readGreeting(p)
		}
	})
}
