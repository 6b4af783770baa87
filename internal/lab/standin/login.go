package standin

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

const cachingSHA2 = "caching_sha2_password"

var errAuth = errors.New("standin: cannot log in to the backend")

// login runs the client's side of a handshake with a real server: mysql_native_password as Mycat does, and caching_sha2_password,
// which Mycat 1.6 does not have, so that the laboratory can also stand before MySQL 9.
func (b *backend) login(host WriteHost, database string) error {
	p, err := b.readPacket()
	if err != nil {
		return err
	}
	if len(p) == 0 {
		return errPacket
	}
	if p[0] == 0xff {
		return parseError(p) // 1040, 1129: refused before the greeting
	}
	seed, plugin, err := b.readGreeting(p)
	if err != nil {
		return err
	}
	auth, err := authData(plugin, host.Password, seed)
	if err != nil {
		plugin = nativePassword // the server will ask for another one
		auth = scramble(host.Password, seed)
	}
	var out []byte
	out = binary.LittleEndian.AppendUint32(out, backendCaps)
	out = binary.LittleEndian.AppendUint32(out, maxStatement)
	out = append(append(out, backendCharset), make([]byte, 23)...)
	out = append(append(out, host.User...), 0)
	out = append(append(out, byte(len(auth))), auth...)
	out = append(append(out, database...), 0)
	out = append(append(out, plugin...), 0)
	if err := b.send(out); err != nil {
		return err
	}
	return b.finishLogin(host.Password, seed)
}

func (f *framed) send(p []byte) error {
	if err := f.writePacket(p); err != nil {
		return err
	}
	return f.w.Flush()
}

func (b *backend) readGreeting(p []byte) (seed []byte, plugin string, err error) {
	s := scanner{b: p[1:]}
	_ = s.zeroString() // version
	b.threadID.Store(uint32(s.number(4)))
	seed = slices.Clone(s.take(8))
	s.take(1 + 2 + 1 + 2 + 2) // filler, lower capabilities, charset, status, upper capabilities
	length := int(s.number(1))
	s.take(10)
	seed = append(seed, s.take(12)...)
	s.take(max(1, length-8-12))
	plugin = s.zeroString()
	if s.bad && len(seed) < 20 || p[0] != 10 {
		return nil, "", fmt.Errorf("%w: greeting", errPacket)
	}
	if plugin == "" {
		plugin = nativePassword
	}
	return seed, plugin, nil
}

func authData(plugin, password string, seed []byte) ([]byte, error) {
	switch plugin {
	case nativePassword:
		return scramble(password, seed), nil
	case cachingSHA2:
		return scrambleSHA256(password, seed), nil
	}
	return nil, fmt.Errorf("%w: unknown plugin %s", errAuth, plugin)
}

// finishLogin answers what the server asks after the first login packet: another plugin, or the full exchange of caching_sha2.
func (b *backend) finishLogin(password string, seed []byte) error {
	for {
		p, err := b.readPacket()
		if err != nil {
			return err
		}
		if len(p) == 0 {
			return errPacket
		}
		switch p[0] {
		case 0x00:
			return nil
		case 0xff:
			return parseError(p)
		case 0xfe:
			s := scanner{b: p[1:]}
			plugin := s.zeroString()
			seed = slices.Clone(s.take(min(20, len(s.b))))
			auth, err := authData(plugin, password, seed)
			if err != nil {
				return err
			}
			if err := b.send(auth); err != nil {
				return err
			}
		case 0x01:
			if err := b.moreAuth(p[1:], password, seed); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: login answer %#x", errPacket, p[0])
		}
	}
}

// moreAuth is caching_sha2_password beyond the scramble: 3 means that the server had the account cached, 4 that it wants the password,
// which without TLS goes under the server's RSA key.
func (b *backend) moreAuth(p []byte, password string, seed []byte) error {
	switch {
	case len(p) == 1 && p[0] == 3:
		return nil
	case len(p) == 1 && p[0] == 4:
		return b.send([]byte{2}) // asks for the key; it comes as the next packet of this kind
	}
	block, _ := pem.Decode(p)
	if block == nil {
		return fmt.Errorf("%w: no public key", errAuth)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return fmt.Errorf("%w: public key: %w", errAuth, err)
	}
	key, ok := parsed.(*rsa.PublicKey)
	if !ok {
		return fmt.Errorf("%w: not an RSA key", errAuth)
	}
	plain := append([]byte(password), 0)
	for i := range plain {
		plain[i] ^= seed[i%len(seed)]
	}
	secret, err := rsa.EncryptOAEP(sha1.New(), rand.Reader, key, plain, nil)
	if err != nil {
		return fmt.Errorf("%w: encrypt: %w", errAuth, err)
	}
	return b.send(secret)
}

// scrambleSHA256 is SHA256(password) xor SHA256(SHA256(SHA256(password)) + seed).
func scrambleSHA256(password string, seed []byte) []byte {
	if password == "" {
		return nil
	}
	one := sha256.Sum256([]byte(password))
	two := sha256.Sum256(one[:])
	mix := sha256.Sum256(append(two[:], seed...))
	for i := range mix {
		mix[i] ^= one[i]
	}
	return mix[:]
}
