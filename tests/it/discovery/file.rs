//! `--instances-file`.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Result;
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use super::{consists_of, problem_of, source, until};
use crate::load::{CHAT, all_right, all_right_during, chat};

const KEY: &str = "a key of the operators";

fn toml(instances: &[(&str, &Engine)]) -> String {
    instances.iter().fold(String::new(), |mut text, (role, engine)| {
        let _ = writeln!(text, "[[instance]]\nrole = '{role}'\naddress = '{}'", engine.address());
        text
    })
}

/// Writes the way careful programs do: beside it, then renamed over it.
fn replace(file: &Path, text: &str) -> Result<()> {
    let beside = file.with_extension("tmp");
    fs::write(&beside, text)?;
    Ok(fs::rename(beside, file)?)
}

struct Setup {
    fleet: Fleet,
    dir: tempfile::TempDir,
}

impl Setup {
    async fn new() -> Result<Self> {
        let setup = Self { fleet: Fleet::start(2, 2).await?, dir: tempfile::tempdir()? };
        replace(&setup.file(), &setup.all())?;
        Ok(setup)
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("instances.toml")
    }

    async fn router(&self) -> Result<Router> {
        let file = self.file();
        let router = Router::builder().arg("--instances-file").arg(&file.to_string_lossy());
        router.env("ADMIN_API_KEY", KEY).start().await
    }

    fn all(&self) -> String {
        toml(&[
            ("prefill", &self.fleet.prefill[0]),
            ("prefill", &self.fleet.prefill[1]),
            ("decode", &self.fleet.decode[0]),
            ("decode", &self.fleet.decode[1]),
        ])
    }

    fn first_of_each(&self) -> String {
        toml(&[("prefill", &self.fleet.prefill[0]), ("decode", &self.fleet.decode[0])])
    }

    async fn has_all(&self, router: &Router) -> Result<()> {
        let [p0, p1] = [0, 1].map(|n| self.fleet.prefill[n].address());
        let [d0, d1] = [0, 1].map(|n| self.fleet.decode[n].address());
        consists_of(router, [&p0, &p1, &d0, &d1]).await.map(drop)
    }

    async fn has_first_of_each(&self, router: &Router) -> Result<()> {
        let (prefill, decode) = (self.fleet.prefill[0].address(), self.fleet.decode[0].address());
        consists_of(router, [&prefill, &decode]).await.map(drop)
    }
}

#[tokio::test]
async fn every_change_is_seen_the_fifth_as_well_as_the_first() -> Result<()> {
    let setup = Setup::new().await?;
    let router = setup.router().await?;
    setup.has_all(&router).await?;
    let changes = async {
        for _ in 0..3 {
            replace(&setup.file(), &setup.first_of_each())?;
            setup.has_first_of_each(&router).await?;
            replace(&setup.file(), &setup.all())?;
            setup.has_all(&router).await?;
        }
        Ok(())
    };
    all_right_during(&setup.fleet, &router, changes).await?;
    let status = source(&router, "file").await?;
    assert_eq!((&status["instances"], &status["problem"]), (&json!(4), &json!(null)));
    setup.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_link_is_swapped_as_kubernetes_does() -> Result<()> {
    let setup = Setup::new().await?;
    let dir = setup.dir.path();
    fs::remove_file(setup.file())?;
    for (folder, text) in [("one", setup.all()), ("two", setup.first_of_each())] {
        fs::create_dir(dir.join(folder))?;
        fs::write(dir.join(folder).join("instances.toml"), text)?;
    }
    symlink("one", dir.join("..data"))?;
    symlink("..data/instances.toml", setup.file())?;
    let router = setup.router().await?;
    setup.has_all(&router).await?;
    symlink("two", dir.join("..data_tmp"))?;
    fs::rename(dir.join("..data_tmp"), dir.join("..data"))?;
    setup.has_first_of_each(&router).await
}

#[tokio::test]
async fn what_can_not_be_used_changes_nothing() -> Result<()> {
    let setup = Setup::new().await?;
    let router = setup.router().await?;
    for (number, (text, said)) in
        [("", "missing field"), ("[[instance]]\nrole = 'prefill'\n", "address"), ("\u{0}", "TOML")]
            .iter()
            .enumerate()
    {
        replace(&setup.file(), text)?;
        let problem = problem_of(&router, "file").await?;
        assert!(problem.contains(said) && problem.contains("instances.toml"), "{problem}");
        router.wait_for_log_times("the last good roster stays", number + 1).await?;
        setup.has_all(&router).await?;
        replace(&setup.file(), &setup.all())?;
        router.wait_for_log_times("discovery works again", number + 1).await?;
    }
    fs::remove_file(setup.file())?;
    problem_of(&router, "file").await?;
    setup.has_all(&router).await?;
    all_right(&setup.fleet, &router, 8, 2).await?;
    fs::write(setup.file(), setup.first_of_each())?;
    setup.has_first_of_each(&router).await
}

#[tokio::test]
async fn a_file_written_in_two_parts_is_never_taken_for_whole() -> Result<()> {
    let setup = Setup::new().await?;
    let router = setup.router().await?;
    setup.has_all(&router).await?;
    let text = setup.all();
    let (first, second) = text.split_at(text.len() / 2);
    let joins = |router: &Router| router.log().iter().filter(|line| line.contains("instance joins")).count();
    loop {
        let (joined, since) = (joins(&router), Instant::now());
        fs::write(setup.file(), first)?;
        sleep(Duration::from_millis(50)).await;
        fs::OpenOptions::new().append(true).open(setup.file())?.write_all(second.as_bytes())?;
        // A machine that stood still meanwhile says nothing: half a file that stays so is a whole one.
        if since.elapsed() < Duration::from_millis(100) {
            sleep(Duration::from_secs(1)).await;
            setup.has_all(&router).await?;
            assert_eq!(joins(&router), joined, "the half was taken for the whole");
            return Ok(());
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_storm_of_touches_changes_nothing() -> Result<()> {
    let setup = Setup::new().await?;
    let router = setup.router().await?;
    setup.has_all(&router).await?;
    for _ in 0..100 {
        fs::write(setup.file(), setup.all())?;
        sleep(Duration::from_millis(3)).await;
    }
    replace(&setup.file(), &setup.first_of_each())?;
    setup.has_first_of_each(&router).await?;
    let joins = router.log().iter().filter(|line| line.contains("instance joins")).count();
    assert_eq!(joins, 4, "the roster was the same all the time");
    Ok(())
}

#[tokio::test]
async fn an_instance_changes_its_role_and_what_runs_on_it_goes_on() -> Result<()> {
    let setup = Setup::new().await?;
    let (prefill, decode) = (&setup.fleet.prefill[0], &setup.fleet.decode[0]);
    let changing = Engine::both().start().await?;
    let before = toml(&[("prefill", &changing), ("decode", decode)]);
    replace(&setup.file(), &before)?;
    let router = setup.router().await?;
    changing.fault(Fault::delay(Duration::from_millis(500)).on_prefill());
    let (client, body) = (router.client(), chat(1));
    let running = tokio::spawn(async move { client.post_json(CHAT, &body).await });
    edge_router_tests::patience::eventually("prefill runs", || !changing.requests().is_empty()).await?;

    let id = consists_of(&router, [&changing.address(), &decode.address()]).await?[0]["id"].clone();
    replace(&setup.file(), &toml(&[("prefill", prefill), ("decode", &changing)]))?;
    let now = consists_of(&router, [&changing.address(), &prefill.address()]).await?;
    let again = now.iter().find(|i| i["address"] == *changing.address()).expect("it is there");
    assert_eq!(again["role"], "decode");
    assert_ne!(again["id"], id);
    running.await??.ok()?;
    let prefills = prefill.requests().len();
    router.post_json(CHAT, &chat(2)).await?.ok()?;
    assert_eq!(prefill.requests().len(), prefills + 1, "nothing is prefilled where it was");
    Ok(())
}

#[tokio::test]
async fn what_operators_remove_stays_out_though_the_file_names_it() -> Result<()> {
    let setup = Setup::new().await?;
    let router = setup.router().await?;
    let operator = router.client().header("x-api-key", KEY);
    for engine in [&setup.fleet.prefill[1], &setup.fleet.decode[1]] {
        operator.post_json("/instances/remove", &json!({ "instance": engine.address() })).await?.ok()?;
    }
    setup.has_first_of_each(&router).await?;
    // The same roster again is no news.
    replace(&setup.file(), &format!("{}\n# saved again\n", setup.all()))?;
    sleep(Duration::from_secs(1)).await;
    setup.has_first_of_each(&router).await?;
    replace(&setup.file(), &setup.first_of_each())?;
    until("it is read", async || Ok(source(&router, "file").await?["instances"] == 2)).await?;
    replace(&setup.file(), &setup.all())?;
    setup.has_all(&router).await?;
    let sources = router.status().await?["instances"][0]["sources"].clone();
    assert_eq!(sources, json!(["file"]));
    Ok(())
}
