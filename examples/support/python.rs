//! Programs in Python, from `PyPI`: installed once into the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::wheel::{self, Result, run};

/// A package with all it needs. It is on the path of no other program.
#[derive(Clone, Debug)]
pub struct Package {
    directory: PathBuf,
}

impl Package {
    /// Installs it the first time, which blocks and takes a network.
    pub fn install(name: &str, version: &str) -> Result<Self> {
        Self::install_once(name, version).map_err(|error| {
            format!("no {name} {version}: {error}. It is installed with `python3 -m pip install {name}=={version}`")
                .into()
        })
    }

    fn install_once(name: &str, version: &str) -> Result<Self> {
        let directory = wheel::once(&format!("{name}-{version}"), &|installed, _| {
            // A directory of its own needs no virtual environment, and no rights over that of the system.
            let pip =
                ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"];
            run(Command::new("python3").args(pip).arg("--target").arg(installed).arg(format!("{name}=={version}")))?;
            Ok(())
        })?;
        Ok(Self { directory })
    }

    /// A Python that can import it.
    pub fn python(&self) -> Command {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", &self.directory);
        python
    }
}

/// A row of a Parquet file, as a reader that is not ours sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Its stream sequence.
    pub sequence: u64,
    /// Its publish time, in nanoseconds since 1970.
    pub published: i64,
    /// Its subject.
    pub subject: String,
    /// Names and values, in order.
    pub headers: Vec<(String, String)>,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// All rows below a directory, as `DuckDB` reads them, in the order of their record ids.
pub fn read_with_duckdb(directory: &Path) -> Result<Vec<Row>> {
    const SCRIPT: &str = "
import duckdb, sys
rows = duckdb.execute('''
    select sequence, epoch_ns(published), subject, payload, headers from read_parquet(?) order by 1, 2
''', [sys.argv[1]])
for sequence, published, subject, payload, headers in rows.fetchall():
    headers = ','.join(h['name'].encode().hex() + ' ' + h['value'].encode().hex() for h in headers)
    print(sequence, published, subject.encode().hex(), payload.hex(), headers, sep='\\t')
";
    let duckdb = Package::install("duckdb", "2.0.1")?;
    let text = run(duckdb.python().args(["-c", SCRIPT]).arg(directory.join("**/*.parquet")))?;
    text.lines().map(row).collect()
}

fn row(line: &str) -> Result<Row> {
    let [sequence, published, subject, payload, headers] = line.split('\t').collect::<Vec<_>>()[..] else {
        return Err(format!("{line:?} is no row").into());
    };
    let text = |hex| Ok::<_, crate::wheel::BoxError>(String::from_utf8(bytes(hex)?)?);
    let headers = headers.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once(' ').ok_or_else(|| format!("{pair:?} is no header"))?;
        Ok::<_, crate::wheel::BoxError>((text(name)?, text(value)?))
    });
    Ok(Row {
        sequence: sequence.parse()?,
        published: published.parse()?,
        subject: text(subject)?,
        headers: headers.collect::<Result<_>>()?,
        payload: bytes(payload)?,
    })
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_row() -> Result<()> {
        let headers = vec![("a".into(), "b".into()), ("c".into(), String::new())];
        let expected = Row { sequence: 7, published: -1, subject: "s.x".into(), headers, payload: vec![0, 255] };
        assert_eq!(row("7\t-1\t732e78\t00ff\t61 62,63 ")?, expected);
        assert!(row("7\t-1\t73\t00").is_err() && row("7\t-1\tzz\t\t").is_err());
        Ok(())
    }
}
