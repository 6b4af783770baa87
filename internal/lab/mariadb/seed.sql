-- What every server of the laboratory starts with: Baton's two accounts, replication's, Mycat's, and the tables.
-- baton_probe passes no read-only; baton_admin has what a switch needs; Mycat's account must not pass read_only.
CREATE DATABASE bank;
CREATE DATABASE baton;

-- server_id is the proof of which instance took the row: it travels with the row to the replica.
CREATE TABLE bank.ledger (
  id BIGINT NOT NULL PRIMARY KEY,
  writer VARCHAR(32) NOT NULL DEFAULT '',
  at_us BIGINT NOT NULL DEFAULT 0,
  server_id INT NOT NULL DEFAULT (@@server_id)
) ENGINE=InnoDB;
CREATE TABLE baton.heartbeat (
  observer VARCHAR(64) NOT NULL PRIMARY KEY,
  at_us BIGINT NOT NULL,
  seq BIGINT NOT NULL
) ENGINE=InnoDB;
CREATE TABLE baton.epoch (
  id TINYINT NOT NULL PRIMARY KEY,
  epoch BIGINT NOT NULL,
  switch VARCHAR(64) NOT NULL,
  site VARCHAR(64) NOT NULL,
  at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE=InnoDB;

CREATE USER baton_probe@'%' IDENTIFIED BY 'probe';
GRANT SELECT, SLAVE MONITOR, BINLOG MONITOR ON *.* TO baton_probe@'%';
GRANT INSERT, UPDATE, DELETE ON baton.heartbeat TO baton_probe@'%';

-- SUPER: SET GLOBAL of the semi-sync variables asks for it on MariaDB, beside the named privileges.
CREATE USER baton_admin@'%' IDENTIFIED BY 'admin';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, RELOAD, PROCESS, SUPER, EVENT, READ ONLY ADMIN, CONNECTION ADMIN, BINLOG ADMIN,
  BINLOG MONITOR, SLAVE MONITOR, REPLICATION SLAVE, REPLICATION SLAVE ADMIN, REPLICATION MASTER ADMIN ON *.* TO baton_admin@'%';

CREATE USER repl@'%' IDENTIFIED BY 'repl';
GRANT REPLICATION SLAVE ON *.* TO repl@'%';

CREATE USER mycat@'%' IDENTIFIED BY 'mycat';
GRANT SELECT, INSERT, UPDATE, DELETE ON bank.* TO mycat@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON baton.* TO mycat@'%';
