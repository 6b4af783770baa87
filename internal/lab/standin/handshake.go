package standin

import (
	"crypto/rand"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
)

// version is Mycat's Versions.SERVER_VERSION: the string of 1.6.7.5, also in 1.6.7.6.
const version = "5.6.29-mycat-1.6.7.5-release-20200428154739"

const nativePassword = "mysql_native_password"

// The capability bits that the stand-in looks at.
const (
	capConnectWithDB = 1 << 3
	capProtocol41    = 1 << 9
	capPluginAuth    = 1 << 19
)

// mycatCaps is what Mycat announces: no SSL, no DEPRECATE_EOF, no MULTI_STATEMENTS, no CONNECT_ATTRS.
const mycatCaps = 0x000ab7cf

// greeting is Mycat's first packet, byte for byte: with useHandshakeV10=1 the real HandshakeV10, else an older one without the upper
// capabilities and without a plugin name. seed has 20 bytes, none zero.
func greeting(id uint32, seed []byte, old bool) []byte {
	p := append([]byte{10}, version...)
	p = append(p, 0)
	p = binary.LittleEndian.AppendUint32(p, id)
	p = append(append(p, seed[:8]...), 0)
	p = binary.LittleEndian.AppendUint16(p, mycatCaps&0xffff)
	p = append(p, charsetUTF8)
	p = binary.LittleEndian.AppendUint16(p, statusAutocommit)
	if old {
		p = append(p, make([]byte, 13)...)
		return append(append(p, seed[8:20]...), 0)
	}
	p = binary.LittleEndian.AppendUint16(p, mycatCaps>>16)
	p = append(p, 21) // length of the seed with its zero
	p = append(p, make([]byte, 10)...)
	p = append(append(p, seed[8:20]...), 0)
	return append(append(p, nativePassword...), 0)
}

// newSeed makes 20 bytes without a zero, which would end the seed early.
func newSeed() []byte {
	seed := make([]byte, 20)
	_, _ = rand.Read(seed) // never fails since Go 1.24
	for i := range seed {
		seed[i] = seed[i]%127 + 1
	}
	return seed
}

// scramble is mysql_native_password: SHA1(password) xor SHA1(seed + SHA1(SHA1(password))).
func scramble(password string, seed []byte) []byte {
	if password == "" {
		return nil
	}
	one := sha1.Sum([]byte(password))
	two := sha1.Sum(one[:])
	mix := sha1.Sum(append(slices.Clone(seed), two[:]...))
	for i := range mix {
		mix[i] ^= one[i]
	}
	return mix[:]
}

// login is what a client answers to the greeting.
type login struct {
	caps     uint32
	charset  byte
	user     string
	auth     []byte
	database string
	plugin   string
}

func parseLogin(p []byte) (login, error) {
	s := scanner{b: p}
	l := login{caps: uint32(s.number(4))}
	s.take(4)
	l.charset = byte(s.number(1))
	s.take(23)
	l.user = s.zeroString()
	l.auth = slices.Clone(s.take(int(s.number(1))))
	if l.caps&capConnectWithDB != 0 {
		l.database = s.zeroString()
	}
	if l.caps&capPluginAuth != 0 {
		l.plugin = s.zeroString()
	}
	if s.bad || l.caps&capProtocol41 == 0 {
		return login{}, fmt.Errorf("%w: login", errPacket)
	}
	return l, nil
}

// authenticate runs the handshake on a fresh connection. A refused login gets its error and may try again on the same connection, as
// in Mycat: only authTimeout closes it. The error is that of the connection.
func (s *session) authenticate(seed []byte) error {
	s.seq = 0
	if err := s.send(greeting(s.id, seed, s.srv.cfg.OldHandshake)); err != nil {
		return err
	}
	for {
		p, err := s.readPacket()
		if err != nil {
			return err
		}
		l, err := parseLogin(p)
		if err != nil {
			return err
		}
		if l.plugin != "" && l.plugin != nativePassword {
			if l.auth, err = s.switchAuth(seed); err != nil {
				return err
			}
		}
		user, refusal := s.srv.admit(l, seed, s.peerHost())
		if refusal == nil {
			s.mu.Lock()
			s.user, s.schema, s.charset = user, l.database, charsetName(l.charset)
			s.mu.Unlock()
			return s.send(okPacket(0, statusAutocommit, ""))
		}
		if err := s.send(refusal.packet()); err != nil {
			return err
		}
	}
}

// switchAuth asks for the only plugin that Mycat has.
func (s *session) switchAuth(seed []byte) ([]byte, error) {
	p := append([]byte{0xfe}, nativePassword...)
	p = append(append(p, 0), seed...)
	if err := s.send(append(p, 0)); err != nil {
		return nil, err
	}
	return s.readPacket()
}

// admit checks a login in Mycat's order and with Mycat's words (sic).
func (srv *Server) admit(l login, seed []byte, host string) (*User, *sqlError) {
	i := slices.IndexFunc(srv.cfg.Users, func(u User) bool { return u.Name == l.user })
	if i < 0 {
		return nil, mycatError(erAccessDenied, "Access denied for user '%s' with host '%s'", l.user, host)
	}
	user := &srv.cfg.Users[i]
	if subtle.ConstantTimeCompare(scramble(user.Password, seed), l.auth) != 1 {
		return nil, mycatError(erAccessDenied, "Access denied for user '%s', because password is error ", l.user)
	}
	if user.Benchmark > 0 && srv.clientsOf(user.Name) >= user.Benchmark {
		return nil, mycatError(erAccessDenied, "Access denied for user '%s', because service be degraded ", l.user)
	}
	return user, srv.checkSchema(user, l.database)
}

func (srv *Server) checkSchema(user *User, name string) *sqlError {
	switch {
	case name == "":
		return nil
	case !slices.ContainsFunc(srv.cfg.Schemas, func(s Schema) bool { return s.Name == name }):
		return mycatError(erBadDB, "Unknown database '%s'", name)
	case len(user.Schemas) > 0 && !slices.Contains(user.Schemas, name):
		return mycatError(erDBAccessDenied, "Access denied for user '%s' to database '%s'", user.Name, name)
	}
	return nil
}

func (s *session) peerHost() string {
	host, _, err := net.SplitHostPort(s.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return host
}

// charsetName maps the collation byte of a login. Mycat ignores ids that it does not know and stays at utf8.
func charsetName(id byte) string {
	switch id {
	case 8:
		return "latin1"
	case 28:
		return "gbk"
	case 45, 46, 224, 255:
		return "utf8mb4"
	case charsetBinary:
		return "binary"
	}
	return "utf8"
}
