#!/usr/bin/env bash
# Propose files of a release to the repository of a catalog, by a pull request from a fork: propose.sh REPOSITORY FOLDER FILE...
#
# FOLDER is where the repository has the files. GH_TOKEN is of an account that owns the fork.
source "$(dirname "$0")/lib.sh"
repository=$1 folder=$2
shift 2
version=$(python3 "$ROOT/dev/release.py" version)
title="lethe v$version"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
gh auth setup-git
login=$(gh api user --jq .login)
gh repo fork "$repository" --clone=false
git clone -q --depth 1 "https://github.com/$repository" "$copy"
mkdir -p "$copy/$folder"
cp -R "$@" "$copy/$folder/"
cd "$copy"
git switch -q -c "lethe-$version"
git add -A
git -c user.name="$login" -c user.email="$login@users.noreply.github.com" commit -q --signoff -m "$title"
git push -q --force "https://github.com/$login/${repository##*/}" "lethe-$version"
gh pr create --repo "$repository" --head "$login:lethe-$version" --title "$title" \
  --body "Made by the release workflow of https://github.com/lethe-lake/lethe: https://github.com/lethe-lake/lethe/releases/tag/v$version"
