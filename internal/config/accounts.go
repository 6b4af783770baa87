package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// account reads {user, password_file | password_env}.
func (r *read) account(a *Account) reader {
	return func(n *yaml.Node, path string) { r.object(n, path, r.accountFields(a, n)...) }
}

// accountFields are the keys of an account in the mapping n. The password is read at once, so that a wrong mode of its file is
// found together with everything else, and never at the moment of a failover.
func (r *read) accountFields(a *Account, n *yaml.Node) []field {
	from := ""
	source := func(key string, get func(string) (Secret, error)) reader {
		return func(n *yaml.Node, path string) {
			if from != "" {
				r.fail(n, path, "%s: there is a %s already: keep one of them", path, from)
				return
			}
			from = key
			scalar(r.decoder, &a.Password, get)(n, path)
		}
	}
	need := "write password_file: /etc/baton/NAME.pw (mode 0600) or password_env: NAME"
	if hasKey(n, "password_env") || hasKey(n, "password") {
		need = ""
	}
	return []field{
		{"user", scalar(r.decoder, &a.User, word), "write the account's name"},
		{"password_file", source("password_file", r.passwordFile), need},
		{"password_env", source("password_env", r.passwordEnv), ""},
	}
}

func hasKey(n *yaml.Node, key string) bool {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

// passwordFile reads a password that nobody but its owner can read.
func (r *read) passwordFile(path string) (Secret, error) {
	path, err := absolute(path)
	if err != nil {
		return Secret{}, err
	}
	info, err := r.host.Stat(path)
	if err != nil {
		return Secret{}, fmt.Errorf("look at the file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Secret{}, fmt.Errorf("%s is no regular file", path)
	}
	if open := info.Mode().Perm() & 0o077; open != 0 {
		return Secret{}, fmt.Errorf("%s has mode %04o, others than its owner can use it: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	data, err := r.host.ReadFile(path)
	if err != nil {
		return Secret{}, fmt.Errorf("read the file: %w", err)
	}
	return password(string(data), path)
}

func (r *read) passwordEnv(key string) (Secret, error) {
	text, ok := r.host.LookupEnv(key)
	if !ok {
		return Secret{}, fmt.Errorf("the environment has no %s: set it in the unit of the daemon (EnvironmentFile=, mode 0600)", key)
	}
	return password(text, key)
}

// password takes the line out of a file that an editor or echo ended with a newline.
func password(text, from string) (Secret, error) {
	text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	switch {
	case text == "":
		return Secret{}, fmt.Errorf("%s is empty: write the password into it", from)
	case strings.ContainsAny(text, "\n\r\x00"):
		return Secret{}, fmt.Errorf("%s has more than one line: it holds the password and nothing else", from)
	}
	return NewSecret(text), nil
}

// readable insists on a file that can be read now; keys must be closed to others.
func (r *read) readable(private bool) func(string) (string, error) {
	return func(s string) (string, error) {
		path, err := absolute(s)
		if err != nil {
			return "", err
		}
		info, err := r.host.Stat(path)
		if err != nil {
			return "", fmt.Errorf("look at the file: %w", err)
		}
		if info.IsDir() {
			return "", errors.New("is a directory: name the PEM file")
		}
		if private && info.Mode().Perm()&0o077 != 0 {
			return "", fmt.Errorf("%s has mode %04o, others than its owner can use it: chmod 600 %s", path, info.Mode().Perm(), path)
		}
		return path, nil
	}
}
